/** What the reader chose to see of a range's calls, and its place in the address. */
import { isCalls, type Calls } from "../data/api.ts";

export type Shape = "flame" | "tree";

export interface CallsChoice {
  readonly shape: Shape;
  readonly by: Calls;
  /** One rank, or null for all that are shown, added up. */
  readonly rank: number | null;
  /** What is taken off: a rank, the mean of the other ranks, another run (its key), or nothing. */
  readonly against: { readonly rank: number } | { readonly run: string } | "others" | null;
  readonly inverted: boolean;
  /** The call that fills the width, as `focusOf` writes it; empty for everything. */
  readonly focus: string;
  /** What is searched for: a part of a name, or an expression between slashes. */
  readonly find: string;
}

export const FIRST: CallsChoice = { shape: "flame", by: "operators", rank: null, against: null, inverted: false, focus: "", find: "" };

/** Longer searches are not kept. */
const FIND_LIMIT = 200;

/** `flame_operators_1_others_i_1x2y3z.4a5b6c_gemm`; what is empty at its end is left out. The search is last: it may have any letter. */
export function writeChoice({ shape, by, rank, against, inverted, focus, find }: CallsChoice): string {
  const parts = [shape, by, rank ?? "all", writeAgainst({ against }), inverted ? "i" : "", focus, find.slice(0, FIND_LIMIT)];
  return parts.slice(0, parts.findLastIndex((part) => part !== "") + 1).join("_");
}

/** `none`, `others`, a rank's number, or `run-` and a run's key. */
export function writeAgainst({ against }: Pick<CallsChoice, "against">): string {
  return against === null ? "none" : against === "others" ? against : "rank" in against ? String(against.rank) : `run-${against.run}`;
}

export function readChoice(text: string | undefined): CallsChoice | null {
  const [shape, by, rank, other, inverted, focus, ...find] = (text ?? "").split("_");
  if ((shape !== "flame" && shape !== "tree") || !isCalls(by)) return null;
  const own = whole(rank);
  const run = /^run-([0-9a-f]{1,40})$/.exec(other ?? "")?.[1];
  const less = whole(other);
  return { shape, by, rank: own, against: run !== undefined ? { run } : less !== null ? { rank: less } : other === "others" ? "others" : null, inverted: inverted === "i",
    focus: /^[0-9a-z]{1,7}(\.[0-9a-z]{1,7})*$/.test(focus ?? "") ? focus! : "", find: find.join("_").slice(0, FIND_LIMIT) };
}

function whole(text: string | undefined): number | null {
  return /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}

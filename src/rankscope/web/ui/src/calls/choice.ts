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
}

export const FIRST: CallsChoice = { shape: "flame", by: "operators", rank: null, against: null, inverted: false };

/** `flame_operators_1_others_i`. */
export function writeChoice({ shape, by, rank, against, inverted }: CallsChoice): string {
  const other = against === null ? "none" : against === "others" ? against : "rank" in against ? String(against.rank) : `run-${against.run}`;
  return [shape, by, rank ?? "all", other, ...(inverted ? ["i"] : [])].join("_");
}

export function readChoice(text: string | undefined): CallsChoice | null {
  const [shape, by, rank, other, inverted] = (text ?? "").split("_");
  if ((shape !== "flame" && shape !== "tree") || !isCalls(by)) return null;
  const own = whole(rank);
  const run = /^run-([0-9a-f]{1,40})$/.exec(other ?? "")?.[1];
  const less = whole(other);
  return { shape, by, rank: own, against: run !== undefined ? { run } : less !== null ? { rank: less } : other === "others" ? "others" : null, inverted: inverted === "i" };
}

function whole(text: string | undefined): number | null {
  return /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}

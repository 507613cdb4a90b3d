/** The order of the ranks' rows. */
import type { Layout } from "./layout.ts";

export const ORDERS = { rank: "Rank", late: "Lateness", mesh: "Mesh", host: "Host" } as const;
export type Order = keyof typeof ORDERS;

export interface Heat {
  readonly ranks: readonly number[];
  readonly steps: readonly unknown[];
  /** By rank, then step. */
  readonly lateness_ns: readonly (number | null)[];
  /** What a rank makes others wait. */
  readonly waited_ns: readonly (number | null)[];
  readonly step_ns: readonly (number | null)[];
}

export function isOrder(text: string | undefined): text is Order {
  return text !== undefined && text in ORDERS;
}

/** The indexes of the ranks in an order; null where that is the layout's own. The latest first; without a value last. */
export function orderOf(layout: Layout, order: Order, heat: Heat | null): readonly number[] | null {
  if (order === "rank") return null;
  const late = heat ? meanByRank(heat, heat.lateness_ns) : new Map<number, number>();
  const key = layout.ranks.map(({ rank, mesh, host }) => (order === "late" ? -(late.get(rank) ?? -1) : order === "mesh" ? mesh : host));
  const compare = (a: string | number, b: string | number): number => (typeof a === "number" && typeof b === "number" ? a - b : natural.compare(String(a), String(b)));
  return layout.ranks.map(({ index }) => index).sort((a, b) => compare(key[a]!, key[b]!) || layout.ranks[a]!.rank - layout.ranks[b]!.rank);
}

/** `dp=2` before `dp=10`. */
export const natural = new Intl.Collator("en", { numeric: true });

/** Each rank's mean over the steps that have a value, in ns. */
export function meanByRank({ ranks, steps }: Heat, values: readonly (number | null)[]): Map<number, number> {
  const found = new Map<number, number>();
  ranks.forEach((rank, i) => {
    const known = values.slice(i * steps.length, (i + 1) * steps.length).filter((value) => value !== null);
    if (known.length > 0) found.set(rank, known.reduce((sum, value) => sum + value, 0) / known.length);
  });
  return found;
}

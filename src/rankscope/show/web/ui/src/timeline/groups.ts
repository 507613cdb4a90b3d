/** Ranks in groups: by a dimension of the mesh or by host. A closed group shows its ranks with the extreme values. */
import { formatDuration } from "../format/units.ts";
import type { Layout, RankRow } from "./layout.ts";
import { meanByRank, natural, type Heat } from "./order.ts";

export interface RankGroup {
  /** Its place in the natural order of the groups: what the address has. */
  readonly index: number;
  readonly title: string;
  readonly ranks: readonly RankRow[];
  /** The ranks with the greatest, the median and the least value, in this order; empty where no rank has one. */
  readonly extremes: readonly Extreme[];
}

export interface Extreme {
  readonly what: "max" | "median" | "min";
  readonly rank: number;
  readonly value: number;
}

/** What the ranks of a group are compared by: of each rank the mean over its steps, in ns. */
export interface Measure {
  readonly title: string;
  readonly values: ReadonlyMap<number, number>;
  /** Tells apart ranks with the same value. */
  readonly then: ReadonlyMap<number, number>;
}

const HOST = "host";
const STAGE = "pp";

/** What ranks can be grouped by: what gives several groups, one of them of several ranks. */
export function groupings(layout: Layout): { readonly value: string; readonly label: string }[] {
  const dimensions = [...new Set(layout.ranks.flatMap((rank) => [...coordinates(rank).keys()]))];
  return [...dimensions.map((value) => ({ value, label: value === STAGE ? "Pipeline stage (pp)" : `Mesh dimension ${value}` })), { value: HOST, label: "Host" }].filter(({ value }) => {
    const groups = byKey(layout, value);
    return groups.size > 1 && groups.size < layout.ranks.length;
  });
}

/** With more ranks than this they are grouped at first: a row each would be less than 3 pixels high on most screens. */
export const UNGROUPED = 256;
/** More groups than this at first would have to be scrolled as far as the ranks. */
const MOST_GROUPS = 32;

/** What ranks are grouped by where the reader has not chosen: the pipeline stage, else what gives the fewest groups. Empty for no groups. */
export function groupingAtFirst(layout: Layout): string {
  if (layout.ranks.length <= UNGROUPED) return "";
  const few = groupings(layout).map(({ value }) => ({ value, groups: byKey(layout, value).size })).filter(({ groups }) => groups <= MOST_GROUPS);
  few.sort((a, b) => Number(b.value === STAGE) - Number(a.value === STAGE) || a.groups - b.groups);
  return few[0]?.value ?? "";
}

/** The ranks' groups in their natural order. */
export function groupsOf(layout: Layout, by: string, measure: Measure | null): readonly RankGroup[] {
  return [...byKey(layout, by)].sort(([a], [b]) => natural.compare(a, b)).map(([title, ranks], index) => ({ index, title, ranks, extremes: extremesOf(ranks, measure) }));
}

/** The wait that a rank causes on others, where there is any; else its lateness, else the time of its steps. Null: not known yet. */
export function measureOf(heat: Heat | null): Measure | null {
  if (!heat) return null;
  const [waited, late] = [meanByRank(heat, heat.waited_ns), meanByRank(heat, heat.lateness_ns)];
  if ([...waited.values()].some((value) => value > 0)) return { title: "wait caused on other ranks", values: waited, then: late };
  if (late.size > 0) return { title: "lateness", values: late, then: late };
  const steps = meanByRank(heat, heat.step_ns);
  return { title: "step time", values: steps, then: steps };
}

/** The values of a group in one line: as much as there is room for, the greatest first. */
export function groupText({ extremes }: RankGroup, measure: Measure | null, fits: (text: string) => boolean = () => true): string {
  if (measure === null) return "the values of the group are not available yet";
  if (extremes.length === 0) return "no step of these ranks was recorded";
  const values = extremes.map(({ what, rank, value }) => `${what} ${formatDuration(value)} (rank ${rank})`);
  const texts = [`${values.join(", ")}: mean ${measure.title} per step`, values.join(", "), values[0] ?? ""];
  return texts.find(fits) ?? texts.at(-1) ?? "";
}

function extremesOf(ranks: readonly RankRow[], measure: Measure | null): Extreme[] {
  const known = ranks.flatMap(({ rank }) => { const value = measure?.values.get(rank); return value === undefined ? [] : [{ rank, value, then: measure?.then.get(rank) ?? 0 }]; });
  known.sort((a, b) => b.value - a.value || b.then - a.then || a.rank - b.rank);
  const [most, median, least] = [known[0], known[known.length >> 1], known.at(-1)];
  const all = [{ what: "max" as const, of: most }, { what: "median" as const, of: median }, { what: "min" as const, of: least }];
  return all.flatMap(({ what, of }, index) => (of && all.findIndex((other) => other.of === of) === index ? [{ what, rank: of.rank, value: of.value }] : []));
}

function byKey(layout: Layout, by: string): Map<string, RankRow[]> {
  const groups = new Map<string, RankRow[]>();
  for (const rank of layout.ranks) {
    const place = coordinates(rank).get(by);
    const key = by === HOST ? rank.host || "host not recorded" : place === undefined ? `${by} not recorded` : `${by}=${place}`;
    const group = groups.get(key);
    if (group) group.push(rank);
    else groups.set(key, [rank]);
  }
  return groups;
}

/** `dp=3, tp=0` by dimension. */
function coordinates({ mesh }: RankRow): Map<string, string> {
  return new Map([...mesh.matchAll(/([^=,\s]+)=([^,]+)/g)].map(([, name = "", place = ""]) => [name, place]));
}

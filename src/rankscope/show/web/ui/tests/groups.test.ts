import { expect, test } from "vitest";
import { groupingAtFirst, groupings, groupsOf, groupText, measureOf } from "../src/timeline/groups.ts";
import type { Layout, RankRow } from "../src/timeline/layout.ts";
import { RowKind, rowsOf, type Folding } from "../src/timeline/rows.ts";
import { layoutOf } from "./layout.ts";

const NONE = { ranks: new Set<number>(), tracks: new Set<number>() };
const folding = (changes: Partial<Folding>): Folding => ({ ranks: new Set(), tracks: new Set(), filter: "", counters: false, pinned: NONE, hidden: NONE, minor: new Set(), names: [], nameLane: () => -1, order: null, groups: null, openGroups: new Set(), found: new Map(), ...changes });

/** 24 ranks on 3 hosts of 8; dp × pp = 12 × 2. */
function meshed(): Layout {
  const layout = layoutOf(24);
  return { ...layout, ranks: layout.ranks.map((rank): RankRow => ({ ...rank, mesh: `dp=${rank.rank >> 1}, pp=${rank.rank % 2}` })) };
}

const ranks = Array.from({ length: 24 }, (_, rank) => rank);
/** Rank 7 is late; of two steps one has no value. */
const heat = { ranks, steps: [1, 2], waited_ns: ranks.flatMap(() => [0, null]), lateness_ns: ranks.flatMap((rank) => [rank === 7 ? 5000 : 10 * rank, null]), step_ns: ranks.flatMap((rank) => [rank, 3 * rank]) };
const shown = (layout: Layout, changes: Partial<Folding>): string[] => {
  const rows = rowsOf(layout, folding(changes), 900);
  return [...rows.kind].flatMap((kind, row) => (kind === RowKind.Group ? `group ${rows.of[row]}` : kind === RowKind.Rank ? `rank ${rows.of[row]}` : []));
};

test("ranks are grouped by what gives several groups of several ranks", () => {
  expect(groupings(meshed()).map(({ value }) => value)).toEqual(["dp", "pp", "host"]);
  expect(groupings(layoutOf(8))).toEqual([]); // one host, no mesh with dimensions
});

test("a closed group shows the ranks with the greatest, median and least value, those that findings name and those that are opened", () => {
  const layout = meshed();
  const groups = groupsOf(layout, "pp", measureOf(heat));
  expect(groups.map(({ title, extremes }) => [title, extremes.map(({ what, rank, value }) => `${what} ${rank} ${value}`)])).toEqual([
    ["pp=0", ["max 22 220", "median 10 100", "min 0 0"]], ["pp=1", ["max 7 5000", "median 13 130", "min 1 10"]],
  ]);
  expect(shown(layout, { groups })).toEqual(["group 0", "rank 22", "rank 10", "rank 0", "group 1", "rank 7", "rank 13", "rank 1"]);
  expect(shown(layout, { groups, ranks: new Set([3]) }).slice(4)).toEqual(["group 1", "rank 7", "rank 13", "rank 1", "rank 3"]);
  expect(shown(layout, { groups, found: new Map([[5, "warning"]]) }).slice(4)).toEqual(["group 1", "rank 7", "rank 13", "rank 1", "rank 5"]);
  const open = shown(layout, { groups, openGroups: new Set([1]) });
  expect(open.slice(4)).toEqual(["group 1", ...ranks.filter((rank) => rank % 2 === 1).map((rank) => `rank ${rank}`)]);
});

test("only many ranks are grouped at first, by pipeline stage, else by what gives the fewest groups", () => {
  const many = (count: number, mesh: (rank: number) => string): Layout => {
    const layout = layoutOf(1);
    return { ...layout, ranks: Array.from({ length: count }, (_, rank): RankRow => ({ ...layout.ranks[0]!, index: rank, rank, host: `host${rank >> 3}`, mesh: mesh(rank) })) };
  };
  expect(groupingAtFirst(many(256, (rank) => `tp=${rank % 8}`))).toBe("");
  expect(groupingAtFirst(many(1024, (rank) => `dp=${rank >> 3}, tp=${rank % 8}`))).toBe("tp");
  expect(groupingAtFirst(many(1024, (rank) => `dp=${rank % 2}, pp=${rank % 4}`))).toBe("pp");
  expect(groupingAtFirst(many(264, () => ""))).toBe(""); // 33 hosts
  expect(groupingAtFirst(many(257, () => ""))).toBe(""); // likewise
  expect(groupingAtFirst({ ...many(512, () => ""), ranks: many(512, () => "").ranks.map((rank) => ({ ...rank, host: `host${rank.rank >> 4}` })) })).toBe("host"); // 32
});

test("rows in groups are as high as their names, however many there are", () => {
  const layout = meshed();
  const groups = groupsOf(layout, "dp", measureOf(heat));
  const rows = rowsOf(layout, folding({ groups }), 200);
  expect([...rows.size].filter((size) => size < 18)).toEqual([]);
  expect(rows.dense).toBe(false);
});

test("filtered and pinned ranks are in no group, and a group without ranks has no row", () => {
  const layout = meshed();
  const groups = groupsOf(layout, "host", measureOf(heat));
  expect(groups.map(({ title }) => title)).toEqual(["host0", "host1", "host2"]);
  expect(shown(layout, { groups, filter: "host1" })).toEqual(["group 1", "rank 15", "rank 11", "rank 8"]);
  expect(shown(layout, { groups, pinned: { ...NONE, ranks: new Set([7]) } }).slice(0, 2)).toEqual(["rank 7", "group 0"]);
  expect(rowsOf(layout, folding({ groups }), 900).ranks).toHaveLength(24); // also those without a row
});

test("without lateness the time of a step is compared, without both there is no value", () => {
  const layout = meshed();
  const steps = measureOf({ ...heat, lateness_ns: heat.lateness_ns.map(() => null) });
  const [group] = groupsOf(layout, "host", steps);
  expect(group?.extremes.map(({ rank, value }) => [rank, value])).toEqual([[7, 14], [3, 6], [0, 0]]);
  expect(groupText(group!, steps).replaceAll("\u00a0", " ")).toBe("max 14 ns (rank 7), median 6 ns (rank 3), min 0 (rank 0): mean step time per step");
  const none = measureOf({ ...heat, lateness_ns: heat.lateness_ns.map(() => null), step_ns: heat.step_ns.map(() => null) });
  expect(groupText(groupsOf(layout, "host", none)[0]!, none)).toBe("no step of these ranks was recorded");
  expect(groupText(groupsOf(layout, "host", null)[0]!, null)).toBe("the values of the group are not available yet");
  // Not empty: the first of each, until there are values.
  expect(shown(layout, { groups: groupsOf(layout, "host", none) })).toEqual(["group 0", "rank 0", "rank 1", "rank 2", "group 1", "rank 8", "rank 9", "rank 10", "group 2", "rank 16", "rank 17", "rank 18"]);
});

test("where ranks make others wait, that is compared, and lateness only where it is the same", () => {
  const waits = measureOf({ ...heat, waited_ns: ranks.flatMap((rank) => [rank === 3 ? 100 : 0, null]) });
  const [group] = groupsOf(meshed(), "pp", waits).slice(1);
  expect(group?.extremes.map(({ what, rank, value }) => [what, rank, value])).toEqual([["max", 3, 100], ["median", 15, 0], ["min", 1, 0]]); // 3, then by lateness 7, 23, 21 … 1
});

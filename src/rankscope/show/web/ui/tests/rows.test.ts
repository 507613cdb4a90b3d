import { expect, test } from "vitest";
import { firstRowAt, firstScrolled, LANE_ROW, minorTracks, RANK_ROW, rowAt, RowKind, rowOnScreen, rowsOf, standIn, type Folding, type Rows } from "../src/timeline/rows.ts";
import { orderOf } from "../src/timeline/order.ts";
import { layoutOf } from "./layout.ts";

const NONE = { ranks: new Set<number>(), tracks: new Set<number>() };
const folding = (changes: Partial<Folding> = {}): Folding => ({ ranks: new Set(), tracks: new Set(), filter: "", counters: true, pinned: NONE, hidden: NONE, minor: new Set(), names: [], nameLane: () => -1, order: null, groups: null, openGroups: new Set(), found: new Map(), ...changes });
const kinds = (rows: Rows): number[] => [...rows.kind];

test("folded, a rank is one row: its whole lane", () => {
  const rows = rowsOf(layoutOf(8), folding(), 600);
  expect(rows.length).toBe(8);
  expect([...rows.lane]).toEqual([0, 7, 14, 21, 28, 35, 42, 49]);
});

test("a thousand ranks are all in sight, one row each, and do not overlap", () => {
  const rows = rowsOf(layoutOf(1000), folding(), 2400);
  expect(rows.length).toBe(1000);
  expect(rows.height).toBeLessThanOrEqual(3000);
  for (let row = 1; row < rows.length; row++) expect(rows.top[row]! - rows.top[row - 1]!).toBeGreaterThanOrEqual(rows.size[row - 1]!);
});

test("open, it has counters, streams and threads lane by lane, and its Python frames folded to one row", () => {
  const rows = rowsOf(layoutOf(1), folding({ ranks: new Set([0]) }), 600);
  expect(kinds(rows)).toEqual([RowKind.Rank, RowKind.Counter, RowKind.Track, RowKind.Track, RowKind.Lane, RowKind.Lane, RowKind.Track]);
  expect([...rows.lane]).toEqual([0, -1, 1, 2, 3, 4, 5]);
  expect(rows.size[0]).toBe(RANK_ROW);
  expect(rows.size[4]).toBe(LANE_ROW);
});

test("a track that is turned shows all of its lanes, or only the first", () => {
  const turned = rowsOf(layoutOf(1), folding({ ranks: new Set([0]), tracks: new Set([2, 3]), counters: false }), 600);
  expect([...turned.lane]).toEqual([0, 1, 2, 5, 6]);
});

test("a filter keeps the ranks and tracks that hold its words", () => {
  const layout = layoutOf(20);
  expect(rowsOf(layout, folding({ filter: "host1" }), 600).length).toBe(8);
  expect(rowsOf(layout, folding({ filter: "rank 3" }), 600).length).toBe(1); // a number is a whole word: not 13
  const streams = rowsOf(layout, folding({ filter: "stream", ranks: new Set([2]), counters: false }), 600);
  expect(kinds(streams).filter((kind) => kind === RowKind.Track)).toHaveLength(1);
  expect(rowsOf(layout, folding({ filter: "nothing like it" }), 600).length).toBe(0);
});

test("the row under a point, and none between two", () => {
  const rows = rowsOf(layoutOf(5), folding({ ranks: new Set([1]) }), 600);
  for (let row = 0; row < rows.length; row++) {
    expect(rowAt(rows, rows.top[row]!)).toBe(row);
    expect(rowAt(rows, rows.top[row]! + rows.size[row]! - 0.1)).toBe(row);
    expect(firstRowAt(rows, rows.top[row]! + rows.size[row]!)).toBe(row + 1);
  }
  expect(rowAt(rows, rows.height + 100)).toBe(-1);
  expect(rowAt(rows, -5)).toBe(-1);
});

test("what is folded away is stood for by its track, else by its rank", () => {
  const layout = layoutOf(2);
  const open = rowsOf(layout, folding({ ranks: new Set([1]), counters: false }), 600);
  expect(open.lane[standIn(layout, open, 13)]).toBe(12); // Python's second depth: its first
  expect(open.lane[standIn(layout, open, 3)]).toBe(0); // rank 0 is folded
});

test("pinned rows come first and stay when the others scroll", () => {
  const layout = layoutOf(40);
  const rows = rowsOf(layout, folding({ pinned: { ranks: new Set([7]), tracks: new Set([4 * 3 + 1]) }, counters: false }), 500);
  expect(rows.pinned).toBe(2);
  expect([...rows.lane.subarray(0, 2)]).toEqual([7 * 7, 3 * 7 + 1]);
  expect([...rows.lane].filter((lane) => lane === 7 * 7)).toHaveLength(1); // once
  const scroll = 123;
  expect(rowOnScreen(rows, 1, scroll)).toBe(0);
  const y = rows.pinnedHeight + 2;
  expect(rowOnScreen(rows, y, scroll)).toBe(rowAt(rows, y + scroll));
  expect(firstScrolled(rows, scroll)).toBe(firstRowAt(rows, scroll + rows.pinnedHeight));
  expect(firstScrolled(rows, 0)).toBe(2);
});

test("of more pins than leave something to scroll, the closed ranks stay, and the others’ lanes scroll", () => {
  const pinned = { ranks: new Set([5, 6, 7]), tracks: new Set<number>() };
  const rows = rowsOf(layoutOf(8), folding({ pinned, ranks: new Set([5, 6]) }), 200);
  expect([...rows.of.slice(0, 2)]).toEqual([7, 5]);
  expect(rows.pinned).toBeGreaterThanOrEqual(2);
  expect(rows.pinned).toBeLessThan(rows.rowOfRank[0]!);
  expect(rows.pinnedHeight).toBeLessThanOrEqual(120);
  expect(rows.pinnedHeight).toBe(rows.top[rows.pinned]);
});

test("hidden ranks and tracks are left out, and a regular expression filters", () => {
  const layout = layoutOf(8);
  const rows = rowsOf(layout, folding({ hidden: { ranks: new Set([0, 3]), tracks: new Set([4 + 2]) }, ranks: new Set([1]), counters: false }), 900);
  expect(rows.rowOfRank[0]).toBe(-1);
  expect(rows.rowOfRank[3]).toBe(-1);
  expect(rows.rowOfLane[7 + 2]).toBe(-1); // its thread
  expect(rows.rowOfLane[7 + 1]).toBeGreaterThan(0); // its stream
  const some = rowsOf(layout, folding({ filter: "/rank [2-4] /" }), 900);
  expect([...some.of]).toEqual([2, 3, 4]);
  expect(rowsOf(layout, folding({ filter: "/(/" }), 900).length).toBe(0);
});

test("the profiler's lanes and nameless threads are minor where others have names", () => {
  const track = (index: number, kind: "thread" | "annotation", title: string): Parameters<typeof minorTracks>[0][number] => ({ index, rank: 0, kind, title, firstLane: index, lanes: 1, folded: false });
  const tracks = [track(0, "thread", "thread 75 (python)"), track(1, "thread", "thread 1067497152"), track(2, "annotation", "PyTorch Profiler"), track(3, "annotation", "ranges on stream 7"), track(4, "annotation", "thread -5"), track(5, "annotation", "Trace PyTorch Profiler")];
  expect([...minorTracks(tracks)]).toEqual([1, 2, 4, 5]);
  expect([...minorTracks([track(0, "thread", "thread 1"), track(1, "thread", "thread 2")])]).toEqual([]);
});

test("ranks in the order of lateness, mesh and host", () => {
  const layout = layoutOf(12);
  const heat = { ranks: [0, 1, 2], steps: [1, 2], lateness_ns: [5, null, 40, 60, 10, 30], waited_ns: [], step_ns: [] };
  expect(orderOf(layout, "late", heat)!.slice(0, 4)).toEqual([1, 2, 0, 3]);
  expect(orderOf(layout, "mesh", null)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]); // dp2 before dp10
  expect(orderOf(layout, "rank", null)).toBeNull();
  expect(rowsOf(layout, folding({ order: orderOf(layout, "late", heat) }), 900).of[0]).toBe(1);
});

import { expect, test } from "vitest";
import { firstRowAt, LANE_ROW, RANK_ROW, rowAt, RowKind, rowsOf, standIn, type Folding, type Rows } from "../src/timeline/rows.ts";
import { layoutOf } from "./layout.ts";

const folding = (changes: Partial<Folding> = {}): Folding => ({ ranks: new Set(), tracks: new Set(), filter: "", counters: true, ...changes });
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

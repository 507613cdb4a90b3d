import { expect, test } from "vitest";
import { laneFilter } from "../src/timeline/lane_filter.ts";
import type { RankRow } from "../src/timeline/layout.ts";

const rank = (number: number): RankRow => ({ rank: number, host: "node1", device: "H100", mesh: "dp=0" }) as RankRow;
const left = (text: string): number[] => [0, 1, 2, 13].filter((number) => laneFilter(text).rank(rank(number)));

test("words, and expressions with and without a mark for case", () => {
  expect(left("1")).toEqual([1]);
  expect(left("rank node1")).toEqual([0, 1, 2, 13]);
  expect(left("/^Rank (1|2)$/i")).toEqual([1, 2]);
  expect(left("/rank 1/")).toEqual([1, 13]);
  expect(left("/^rank 13 .*dp=0/")).toEqual([13]);
  expect(left("/(/")).toEqual([]);
});

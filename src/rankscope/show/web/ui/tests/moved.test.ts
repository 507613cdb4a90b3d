import { expect, test } from "vitest";
import { moved, type RawLayout } from "../src/timeline/moved.ts";

const layout = (origin: string, threads: Record<number, number>): RawLayout => {
  const tracks: { rank: number; kind: string; title: string; lanes: [number, number] }[] = [];
  const lanes = { track: [] as number[], depth: [] as number[], overflow: [] as number[] };
  for (const [rank, depth] of Object.entries(threads)) {
    for (const [kind, title, count] of [["rank", "rank", 1], ["thread", "thread 1", depth]] as const) {
      tracks.push({ rank: Number(rank), kind, title, lanes: [lanes.track.length, count] });
      for (let i = 0; i < count; i++) {
        lanes.track.push(tracks.length - 1);
        lanes.depth.push(i);
        lanes.overflow.push(0);
      }
    }
  }
  return { origin_ns: origin, ranks: Object.keys(threads).map((rank) => ({ rank: Number(rank) })), tracks, lanes };
};

test("a selected event, opened tracks and windows move with their lanes and clock", () => {
  // Rank 1 was alone; now rank 0 comes before it, and rank 1's thread is one deeper.
  const before = layout("1700000000000000500", { 1: 2 });
  const after = layout("1700000000000000200", { 0: 3, 1: 3 });
  const params = new Map([["sel", "2.7"], ["tracks", "1"], ["t", "100_900.5"], ["m", "5_6"], ["find", "nccl"]]);
  expect(moved(params, before, after)).toEqual({ sel: "6.7", tracks: "3", t: "400_1200.5", m: "305_306" });
});

test("the ranks that are open stay open when more come", () => {
  const [two, three] = [layout("5", { 1: 1, 2: 1 }), layout("5", { 0: 1, 1: 1, 2: 1 })];
  expect(moved(new Map(), two, three)).toEqual({ open: "1.2" });
  expect(moved(new Map([["open", "none"]]), two, three)).toEqual({});
  expect(moved(new Map(), three, three)).toEqual({});
});

test("what is not there any more is let go", () => {
  const before = layout("5", { 0: 3 });
  const after = layout("5", { 0: 1 });
  expect(moved(new Map([["sel", "3.1"], ["tracks", "0-1.9"], ["t", "1_2"]]), before, after)).toEqual({ sel: "", tracks: "0.1" });
  expect(moved(new Map(), before, after)).toEqual({});
});

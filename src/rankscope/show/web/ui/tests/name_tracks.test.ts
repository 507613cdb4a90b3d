import { expect, test } from "vitest";
import type { Api } from "../src/data/api.ts";
import { NameLanes, ranksOfTrack, readNameTracks, toggled } from "../src/timeline/name_tracks.ts";
import { Names } from "../src/timeline/names.ts";
import { firstScrolled, RowKind, rowsOf, type Folding } from "../src/timeline/rows.ts";
import { layoutOf } from "./layout.ts";

const NONE = { ranks: new Set<number>(), tracks: new Set<number>() };

async function namesOf(...names: string[]): Promise<Names> {
  const found = new Names();
  await found.load({ run: null, json: async () => ({ names, next: null }) } as unknown as Api, () => undefined);
  return found;
}

test("lanes of a name are behind the run's, and are requested by its number and ranks", async () => {
  const layout = layoutOf(3);
  const lanes = new NameLanes(layout, await namesOf("copy", "gemm"));
  const [gemm, copy] = [[0, 1, 2].map((rank) => lanes.lane("gemm", rank)), lanes.lane("copy", 2)];
  expect(new Set([...gemm, copy]).size).toBe(4);
  expect(Math.min(...gemm, copy)).toBeGreaterThanOrEqual(layout.laneTrack.length);
  expect(lanes.of(gemm[1]!)).toEqual({ name: "gemm", rank: 1 });
  expect(lanes.of(copy)).toEqual({ name: "copy", rank: 2 });
  expect(lanes.of(0)).toBeNull();
  expect(lanes.request("tiles", gemm)).toEqual(["named/tiles", { name: 1, ranks: "0-2" }]);
  expect(lanes.request("events", [0, 1, 5])).toEqual(["events", { lanes: "0-1,5" }]);
  expect(lanes.event({ lane: copy, row: 7 })).toEqual(["named/event", { name: 0, rank: 2, row: 7 }]);
  expect(lanes.group(gemm[0]!)).toBe(lanes.group(gemm[2]!));
  expect(lanes.group(copy)).not.toBe(lanes.group(gemm[0]!));
});

test("a lane is fetched once its name's number is known, and never if the run has no such name", async () => {
  const names = new Names();
  const lanes = new NameLanes(layoutOf(1), names);
  const [there, missing] = [lanes.lane("gemm", 0), lanes.lane("nothing", 0)];
  expect([lanes.exists(there), lanes.exists(0)]).toEqual([null, true]);
  await names.load({ run: null, json: async () => ({ names: ["gemm"], next: null }) } as unknown as Api, () => undefined);
  expect([lanes.exists(there), lanes.exists(missing)]).toEqual([true, false]);
});

test("a track has a lane for each rank that is shown, or for those that it names, pinned to the top", async () => {
  const layout = layoutOf(40);
  const lanes = new NameLanes(layout, await namesOf("gemm", "copy"));
  const folding = (changes: Partial<Folding>): Folding => ({ ranks: new Set(), tracks: new Set(), filter: "", counters: false, pinned: NONE, hidden: NONE, minor: new Set(), names: [], nameLane: (name, rank) => lanes.lane(name, rank), order: null, groups: null, openGroups: new Set(), found: new Map(), ...changes });
  const some = rowsOf(layout, folding({ names: [{ name: "gemm", ranks: new Set([3, 9]) }], pinned: { ranks: new Set([5]), tracks: new Set() } }), 600);
  expect([...some.kind.slice(0, 4)]).toEqual([RowKind.Name, RowKind.Named, RowKind.Named, RowKind.Rank]);
  expect([...some.of.slice(1, 4)]).toEqual([3, 9, 5]);
  expect(some.pinned).toBe(4);
  expect(some.rowOfNamed.get(lanes.lane("gemm", 9))).toBe(2);
  expect(firstScrolled(some, 300)).toBeGreaterThan(4);
  const shown = rowsOf(layout, folding({ names: [{ name: "gemm", ranks: null }], hidden: { ranks: new Set([0, 1]), tracks: new Set() } }), 600);
  expect([...shown.kind].filter((kind) => kind === RowKind.Named)).toHaveLength(38);
  // However many ranks there are, something is left to scroll.
  expect(shown.pinnedHeight).toBeLessThanOrEqual(0.6 * 600);
  for (let row = 1; row < shown.length; row++) expect(shown.top[row]!).toBeGreaterThanOrEqual(shown.top[row - 1]! + shown.size[row - 1]!);
});

test("a track is added, gets other ranks, and is removed", () => {
  const layout = layoutOf(40);
  const mine = { name: "gemm", ranks: ranksOfTrack(layout, 7, new Set([2])) };
  expect(mine.ranks).toEqual(new Set([7, 2]));
  expect(ranksOfTrack(layoutOf(4), 1, new Set())).toBeNull();
  const added = toggled([{ name: "copy", ranks: null }], mine);
  expect(added).toEqual([{ name: "copy", ranks: null }, mine]);
  const wider = toggled(added, { name: "gemm", ranks: null });
  expect(wider).toEqual([{ name: "copy", ranks: null }, { name: "gemm", ranks: null }]);
  expect(toggled(wider, { name: "gemm", ranks: null })).toEqual([{ name: "copy", ranks: null }]);
});

test("an address names each track once, and not without end", () => {
  expect(readNameTracks("gemm~!gemm~0-2!%E0%A4%A~!~3")).toEqual([{ name: "gemm", ranks: null }]);
  expect(readNameTracks(Array.from({ length: 500 }, (_, i) => `n${i}~`).join("!")).length).toBeLessThan(20);
});

import { expect, test } from "vitest";
import { formatHash, parseHash } from "../src/app/router.ts";
import { exactly } from "../src/format/pattern.ts";
import { readAddress, writeAddress } from "../src/timeline/address.ts";

const FIRST = new Set([0]);
const AT_FIRST = { open: FIRST, pinned: new Set<number>(), groupBy: "" };
const NONE = { ranks: new Set<number>(), tracks: new Set<number>() };
const nothing = { window: null, selected: null, measured: null, open: FIRST, tracks: new Set<number>(), filter: "", query: "", counters: true, at: null, calls: null, pinned: NONE, hidden: NONE, minor: new Set<number>(), order: "rank" as const, groupBy: "", openGroups: new Set<number>(), path: null, flags: [], nameTracks: [] };

function roundTrip(address: Parameters<typeof writeAddress>[0]): ReturnType<typeof readAddress> {
  return readAddress(parseHash(formatHash("timeline", new Map(Object.entries(writeAddress(address, AT_FIRST))))).params);
}

test("a view goes into the URL and comes back", () => {
  const address = {
    window: { from: -20000, to: 123456789 }, selected: { lane: 4012, row: 99 }, measured: { from: 5, to: 17 }, open: new Set([3, 4, 5, 900]), tracks: new Set([7]),
    filter: "rank 3 <b>&?#", query: "</script>\u202e%", counters: false, at: { rank: 12, by: 40 },
    pinned: { ranks: new Set([4]), tracks: new Set([17, 18]) }, hidden: { ranks: new Set([0]), tracks: new Set<number>() }, minor: new Set([2]), order: "late" as const, groupBy: "pp", openGroups: new Set([1]), path: "all" as const,
    calls: { shape: "tree" as const, by: "frames" as const, rank: 3, against: { run: "0a9f" }, inverted: true, focus: "1a.2b", find: "a_b" },
    flags: [{ at: -5, text: "" }, { at: 1234567, text: "slow ~ here! 100 % & <b>" }],
    nameTracks: [{ name: "void f<int>(a&, b) [x] ~0!~ 100 %", ranks: null }, { name: "gemm", ranks: new Set([0, 1, 2, 40]) }],
  };
  expect(roundTrip(address)).toEqual({ ...address, rank: null, step: null, event: null, range: null, name: "", track: false });
});

test("how calls are shown goes into the URL and comes back", () => {
  for (const against of [null, "others" as const, { rank: 12 }, { run: "9f" }]) for (const rank of [null, 0]) for (const inverted of [true, false]) {
    const calls = { shape: "flame" as const, by: "modules" as const, rank, against, inverted, focus: "", find: "" };
    expect(roundTrip({ ...nothing, measured: { from: 5, to: 17 }, calls }).calls).toEqual(calls);
  }
  for (const text of ["", "flame", "pie_operators", "flame_kernels_1", "flame_operators_x_run-<b>"]) {
    expect(readAddress(new Map([["calls", text]])).calls ?? { rank: null, against: null }).toMatchObject({ rank: null, against: null });
  }
});

test("deep in, the ends keep their fractions", () => {
  const { window } = roundTrip({ ...nothing, window: { from: 1000.25, to: 1064.5 } });
  expect(window).toEqual({ from: 1000.25, to: 1064.5 });
});

test("what is as it was at first leaves no trace in the URL", () => {
  expect(formatHash("timeline", new Map(Object.entries(writeAddress(nothing, AT_FIRST))))).toBe("#/timeline");
  expect(roundTrip({ ...nothing, open: new Set() }).open).toEqual(new Set());
});

test("among many ranks, groups and pins are in the URL where they are not as at first", () => {
  const first = { ...AT_FIRST, pinned: new Set([7]), groupBy: "tp" };
  const read = (changes: object): ReturnType<typeof readAddress> => readAddress(parseHash(formatHash("timeline", new Map(Object.entries(writeAddress({ ...nothing, ...changes }, first))))).params);
  expect(read({ groupBy: "tp", pinned: { ...NONE, ranks: new Set([7]) } })).toMatchObject({ groupBy: null, pinned: { ranks: null } });
  expect(read({ groupBy: "", pinned: NONE })).toMatchObject({ groupBy: "", pinned: { ranks: new Set() } });
  expect(read({ groupBy: "dp", pinned: { ...NONE, ranks: new Set([7, 8]) } })).toMatchObject({ groupBy: "dp", pinned: { ranks: new Set([7, 8]) } });
});

test("what is not an address is no address", () => {
  const address = readAddress(new Map([["t", "5_1"], ["sel", "-1.x"], ["m", "1e9_2e9"], ["open", "a.5-3.0-999999999"], ["rank", "-3"], ["step", "1.5"]]));
  expect(address).toMatchObject({ window: null, selected: null, measured: null, rank: null, step: null });
  expect(address.open!.size).toBeLessThan(200_000);
});

test("another view leads here by rank and step", () => {
  expect(readAddress(parseHash("#/timeline?rank=3&step=12").params)).toMatchObject({ rank: 3, step: 12 });
  expect(readAddress(parseHash(formatHash("timeline", new Map([["name", "void f<int>(a&, b) [x]"]]))).params).name).toBe("void f<int>(a&, b) [x]");
});

test("the expression of a name matches that name alone", () => {
  for (const name of ["aten::mm", "void gemm<float, (anonymous namespace)::F>(int*, char) [clone .0]", "a|b^c$d\\e{1,2}?*+", "x/y-z"]) {
    expect(new RegExp(exactly(name), "i").test(name)).toBe(true);
    expect(new RegExp(exactly(name), "i").test(`${name}_backward`)).toBe(false);
  }
});

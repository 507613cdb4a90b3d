import { expect, test } from "vitest";
import { drawLane, type Scene } from "../src/timeline/draw.ts";
import { hitAt } from "../src/timeline/hit.ts";
import { ranges } from "../src/timeline/lists.ts";
import { Raster } from "../src/timeline/raster.ts";
import { lowerBound, TILE_BINS, TileCache } from "../src/timeline/tiles.ts";
import { binsOf, eventsOf, type Event } from "./answers.ts";

function someEvents(seed: number, count: number, span: number): Event[] {
  let state = seed;
  const next = (): number => (state = (state * 1664525 + 1013904223) % 2 ** 32) / 2 ** 32;
  const cuts = Array.from({ length: 2 * count }, () => Math.floor(next() * span)).sort((a, b) => a - b);
  return Array.from({ length: count }, (_, i) => ({ start: cuts[2 * i]!, end: cuts[2 * i + 1]!, category: Math.floor(next() * 2), name: Math.floor(next() * 5) })).filter(({ start, end }) => end > start);
}

const SPAN = TILE_BINS * 256;
const lanes = [someEvents(1, 300, SPAN), [], someEvents(2, 40, SPAN)];
const scene = (cache: TileCache, window: { from: number; to: number }, level = 0, width = 200): Scene =>
  ({ cache, window, width, level, levels: 3, columns: cache.columnsOf(level, Math.max(0, window.from), window.to), part: window });

function drawn(cache: TileCache, lane: number, window: { from: number; to: number }, level = 0): { line: number[]; complete: boolean } {
  const raster = new Raster(200, 1, [{ r: 255, g: 0, b: 0 }, { r: 0, g: 0, b: 255 }], ["none", "none"]);
  raster.ground(0, 1, { r: 0, g: 0, b: 0 });
  raster.cover.begin();
  const complete = drawLane(raster.cover, scene(cache, window, level), lane);
  raster.finish(0, 1, { r: 0, g: 0, b: 0 }, { r: 0, g: 0, b: 0, a: 0 });
  return { line: [...raster.bytes], complete };
}

test("an answer is split into the lanes that were asked for, those without a bin too", () => {
  const cache = new TileCache(256, 4);
  const column = cache.column(0, 0);
  cache.addBins(column, [5, 9, 12], binsOf(lanes, 256, 0));
  expect([...column.bins.keys()]).toEqual([5, 9, 12]);
  expect(column.bins.get(9)).toMatchObject({ count: 0 });
  expect(column.bins.get(5)!.count).toBe(lanes[0]!.length);
  expect(column.bins.get(12)!.count).toBe(lanes[2]!.length);
  const tile = column.bins.get(12)!;
  const busy = tile.batch.busy.subarray(tile.busyFrom, tile.busyTo).reduce((sum, ns) => sum + ns, 0);
  expect(busy).toBe(lanes[2]!.reduce((sum, { start, end }) => sum + end - start, 0));
});

test("bins and exact events give the same picture where a bin is a pixel", () => {
  const window = { from: 256 * 100, to: 256 * 300 };
  const bins = new TileCache(256, 4);
  bins.addBins(bins.column(0, 0), [0, 1, 2], binsOf(lanes, 256, 0));
  const exact = new TileCache(256, 4);
  exact.addEvents(exact.column(0, 0), [0, 1, 2], eventsOf(lanes, 0, SPAN));
  for (const lane of [0, 1, 2]) {
    const [a, b] = [drawn(bins, lane, window), drawn(exact, lane, window)];
    expect(a.complete && b.complete).toBe(true);
    const apart = a.line.filter((value, i) => Math.abs(value - b.line[i]!) > 1).length;
    const edges = lanes[lane]!.filter(({ start, end }) => end - start >= 4 * 256 && start >= window.from && start < window.to).length;
    expect(apart).toBeLessThanOrEqual(edges * 3); // exact events have an edge where they are wide
  }
});

test("until its tiles come a lane is drawn from coarser ones, and says so", () => {
  const cache = new TileCache(256, 4);
  cache.addBins(cache.column(1, 0), [0], binsOf([lanes[0]!], 1024, 0));
  const { line, complete } = drawn(cache, 0, { from: 0, to: SPAN });
  expect(complete).toBe(false);
  expect(line.some((value, i) => i % 4 !== 3 && value > 0)).toBe(true);
});

test.each([7, 40, -7, -40, 199, -199])("a picture that is moved by %i pixels, and its new columns drawn, is the picture drawn anew", (by) => {
  const perPixel = 512;
  const inks = [{ r: 255, g: 0, b: 0 }, { r: 0, g: 0, b: 255 }];
  const hatch = { r: 255, g: 255, b: 255, a: 0.5 };
  const [width, height] = [200, 24];
  for (const exact of [true, false]) {
    const cache = new TileCache(256, 4);
    if (exact) cache.addEvents(cache.column(0, 0), [0, 1, 2], eventsOf(lanes, 0, SPAN));
    else cache.addBins(cache.column(0, 0), [0, 1, 2], binsOf(lanes, 256, 0));
    const draw = (raster: Raster, from: number, first: number, beyond: number): void => {
      const window = { from, to: from + width * perPixel };
      raster.restart(first, beyond);
      raster.phase = (((Math.round(from / perPixel)) % 6) + 6) % 6;
      const part = { from: from + first * perPixel, to: from + beyond * perPixel };
      let free = 0;
      for (const [lane, top, size] of [[0, 2, 3], [2, 7, 14]] as const) {
        raster.ground(free, top, { r: 9, g: 9, b: 9 });
        free = top + size;
        raster.cover.begin();
        drawLane(raster.cover, { cache, window, width, level: 0, levels: 3, columns: cache.columnsOf(0, Math.max(0, from), window.to), part }, lane);
        raster.finish(top, size, { r: 40, g: 40, b: 40 }, hatch);
        raster.upright(Math.round((100_000 - from) / perPixel), 1, top, top + size, { r: 1, g: 2, b: 3 });
      }
      raster.ground(free, height, { r: 9, g: 9, b: 9 });
    };
    for (const from of [60_000, 61_234.5]) {
      const moved = new Raster(width, height, inks, ["none", "rising"]);
      draw(moved, from, 0, width);
      const before = [...moved.pixels];
      moved.shift(by);
      draw(moved, from + by * perPixel, by > 0 ? width - by : 0, by > 0 ? width : -by);
      const anew = new Raster(width, height, inks, ["none", "rising"]);
      draw(anew, from + by * perPixel, 0, width);
      expect([...anew.pixels]).not.toEqual(before);
      expect([...moved.pixels]).toEqual([...anew.pixels]);
    }
  }
});

test("the least lately used goes first, the newest never, and the sum stays within its bounds", () => {
  const file = binsOf([lanes[0]!], 256, 0);
  const cache = new TileCache(256, 4, file.bytes * 5);
  for (let i = 0; i < 5; i++) cache.addBins(cache.column(0, i), [0], file);
  cache.touch(cache.column(0, 0));
  for (let i = 5; i < 9; i++) cache.addBins(cache.column(0, i), [0], file);
  expect(cache.bytes).toBeLessThanOrEqual(file.bytes * 5);
  expect(cache.column(0, 8).bins.has(0)).toBe(true);
  expect(cache.column(0, 1).bins.has(0)).toBe(false);
});

test("columns cover the window and no more", () => {
  const cache = new TileCache(256, 4);
  const length = TILE_BINS * 256;
  expect(cache.columnsOf(0, 0, length).map(({ index }) => index)).toEqual([0]);
  expect(cache.columnsOf(0, length - 1, length + 1).map(({ index }) => index)).toEqual([0, 1]);
  expect(cache.columnsOf(-3, 10 * length, 10 * length + 1)).toHaveLength(1);
});

test("every event is hit in its middle, and the nearest one next to it", () => {
  const cache = new TileCache(256, 4);
  cache.addEvents(cache.column(0, 0), [0, 1, 2], eventsOf(lanes, 0, SPAN));
  const at = scene(cache, { from: 0, to: SPAN });
  lanes[2]!.forEach(({ start, end }, row) => {
    expect(hitAt(at, 2, (start + end) / 2, 0)).toMatchObject({ lane: 2, row, start, end, count: 1 });
    expect(hitAt(at, 2, start - 0.4, 0.5)).toMatchObject({ lane: 2 });
  });
  expect(hitAt(at, 1, 1000, 1e9)).toBeNull();
});

test("where events overlap the longest is found too", () => {
  const cache = new TileCache(256, 4);
  const nested = [{ start: 0, end: 1000, category: 0, name: 0 }, { start: 100, end: 120, category: 0, name: 1 }, { start: 200, end: 210, category: 0, name: 2 }];
  cache.addEvents(cache.column(0, 0), [0], eventsOf([nested], 0, SPAN));
  const at = scene(cache, { from: 0, to: SPAN });
  expect(hitAt(at, 0, 700, 5)).toMatchObject({ row: 0 });
  expect(hitAt(at, 0, 205, 5)).toMatchObject({ row: 2 });
});

test("a bin leads to the event that covers most of it", () => {
  const cache = new TileCache(256, 4);
  cache.addBins(cache.column(0, 0), [0], binsOf([lanes[2]!], 256, 0));
  const longest = lanes[2]!.reduce((a, c) => (c.end - c.start > a.end - a.start ? c : a));
  expect(hitAt(scene(cache, { from: 0, to: SPAN }), 0, (longest.start + longest.end) / 2, 0)).toMatchObject({ row: lanes[2]!.indexOf(longest), start: null });
});

test("lanes are named as ranges", () => {
  expect(ranges([0, 1, 2, 5, 7, 8])).toBe("0-2,5,7-8");
  expect(ranges([])).toBe("");
});

test("lowerBound finds the first that is not below", () => {
  const values = [1, 3, 3, 8];
  for (let value = 0; value < 10; value++) expect(lowerBound(values, value, 0, 4)).toBe(values.findIndex((each) => each >= value) < 0 ? 4 : values.findIndex((each) => each >= value));
});

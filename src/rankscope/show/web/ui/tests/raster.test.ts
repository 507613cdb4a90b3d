import { expect, test } from "vitest";
import { FAINTEST, Raster, type Ink } from "../src/timeline/raster.ts";

const INKS: Ink[] = [{ r: 200, g: 10, b: 30 }, { r: 0, g: 120, b: 250 }, { r: 90, g: 200, b: 40 }];
const WHITE: Ink = { r: 255, g: 255, b: 255 };
const NO_HATCH = { r: 0, g: 0, b: 0, a: 0 };

function random(seed: number): () => number {
  let state = seed;
  return () => (state = (state * 1664525 + 1013904223) % 2 ** 32) / 2 ** 32;
}

interface Rectangle { x0: number; x1: number; share: number; category: number }

/** The same picture the slow way: every pixel asks every rectangle how much of it that covers. */
function naive(width: number, rectangles: Rectangle[], inks: readonly Ink[] = INKS): number[][] {
  return Array.from({ length: width }, (_, x) => {
    let share = 0;
    const sum = [0, 0, 0];
    for (const { x0, x1, share: part, category } of rectangles) {
      const covered = Math.max(0, Math.min(x + 1, x1) - Math.max(x, x0)) * part;
      const ink = inks[category]!;
      share += covered;
      [ink.r, ink.g, ink.b].forEach((value, i) => { sum[i]! += covered * value; });
    }
    if (share < 1e-12) return [255, 255, 255];
    const shown = Math.min(1, Math.max(FAINTEST, share));
    return sum.map((value) => (value / share) * shown + 255 * (1 - shown));
  });
}

function pixel(raster: Raster, x: number, y: number): number[] {
  const at = (y * raster.width + x) * 4;
  return [...raster.bytes.subarray(at, at + 3)];
}

test.each([1, 2, 3, 4, 5, 6, 7, 8])("the pixels are those of a naive drawing (%i)", (seed) => {
  const next = random(seed);
  const width = 120;
  const raster = new Raster(width, 4, INKS, ["none", "none", "none"]);
  raster.ground(0, raster.height, WHITE);
  for (let row = 0; row < 4; row++) { // rows follow each other: nothing of one may be left in the next
    const rectangles = Array.from({ length: 60 }, () => {
      const x0 = next() * 160 - 20;
      return { x0, x1: x0 + next() ** 3 * 30, share: next() < 0.5 ? 1 : next(), category: Math.floor(next() * 3) };
    });
    raster.cover.begin();
    for (const { x0, x1, share, category } of rectangles) raster.cover.span(x0, x1, share, category, false);
    raster.finish(row, 1, WHITE, NO_HATCH);
    const wanted = naive(width, rectangles);
    for (let x = 0; x < width; x++) pixel(raster, x, row).forEach((value, i) => expect(Math.abs(value - wanted[x]![i]!), `row ${row}, pixel ${x}`).toBeLessThanOrEqual(1));
  }
});

test.each([[2, 60], [3, 60], [4, 60], [6, 60], [7, 60], [3, 20_000], [6, 20_000]])("with %i categories and %i rectangles too", (categories, count) => {
  const next = random(categories * 31 + count);
  const inks = Array.from({ length: categories }, () => ({ r: Math.floor(next() * 256), g: Math.floor(next() * 256), b: Math.floor(next() * 256) }));
  const width = 80;
  const rectangles = Array.from({ length: count }, () => {
    const x0 = next() * 100 - 10;
    return { x0, x1: x0 + next() ** 2 * 30, share: 1, category: Math.floor(next() * categories) };
  });
  const raster = new Raster(width, 1, inks, inks.map(() => "none" as const));
  raster.cover.begin();
  for (const { x0, x1, share, category } of rectangles) raster.cover.span(x0, x1, share, category, false);
  raster.finish(0, 1, WHITE, NO_HATCH);
  const wanted = naive(width, rectangles, inks);
  for (let x = 0; x < width; x++) pixel(raster, x, 0).forEach((value, i) => expect(Math.abs(value - wanted[x]![i]!), `pixel ${x}`).toBeLessThanOrEqual(1));
});

test("what is there is seen, be it ever so short", () => {
  const raster = new Raster(10, 1, INKS, ["none", "none", "none"]);
  raster.ground(0, raster.height, WHITE);
  raster.cover.begin();
  raster.cover.span(4.5, 4.5001, 1, 0, true);
  raster.finish(0, 1, WHITE, NO_HATCH);
  expect(pixel(raster, 4, 0)[1]!).toBeLessThan(255 - 0.9 * FAINTEST * 245);
  expect(pixel(raster, 3, 0)).toEqual([255, 255, 255]);
});

test("a row is as high as it is said to be, and is cut at the picture's edges", () => {
  const raster = new Raster(6, 20, INKS, ["none", "none", "none"]);
  raster.ground(0, raster.height, WHITE);
  for (const [top, height] of [[-3, 5], [8, 4], [18, 9], [40, 3]] as const) {
    raster.cover.begin();
    raster.cover.span(0, 6, 1, 1, false);
    raster.finish(top, height, WHITE, NO_HATCH);
  }
  const filled = Array.from({ length: 20 }, (_, y) => pixel(raster, 2, y)[0] === 0);
  expect(filled.flatMap((is, y) => (is ? [y] : []))).toEqual([0, 1, 8, 9, 10, 11, 18, 19]);
});

test("a pattern tells categories apart in rows that are high enough, and in those alone", () => {
  const draw = (height: number): Set<string> => {
    const raster = new Raster(24, height, INKS, ["none", "rising", "dots"]);
    raster.ground(0, raster.height, WHITE);
    raster.cover.begin();
    raster.cover.span(0, 24, 1, 1, false);
    raster.finish(0, height, WHITE, { ...WHITE, a: 0.5 });
    return new Set(Array.from({ length: 24 * height }, (_, i) => pixel(raster, i % 24, Math.floor(i / 24)).join()));
  };
  expect(draw(8).size).toBe(1);
  expect(draw(16).size).toBe(2);
});

test("neighbors of one color have an edge between them", () => {
  const raster = new Raster(20, 1, INKS, ["none", "none", "none"]);
  raster.ground(0, raster.height, WHITE);
  raster.cover.begin();
  raster.cover.span(0, 10, 1, 0, true);
  raster.cover.span(10, 20, 1, 0, true);
  raster.finish(0, 1, WHITE, NO_HATCH);
  expect(pixel(raster, 10, 0)[0]!).toBeLessThan(pixel(raster, 9, 0)[0]!);
});

test("rectangles are counted, those out of sight not", () => {
  const raster = new Raster(10, 1, INKS, ["none", "none", "none"]);
  raster.ground(0, raster.height, WHITE);
  raster.cover.begin();
  raster.cover.span(-5, -1, 1, 0, false);
  raster.cover.span(2, 3, 1, 0, false);
  raster.cover.span(10, 12, 1, 0, false);
  expect(raster.cover.rectangles).toBe(1);
});

test("a row in two parts is what two rows without the other's categories are", () => {
  const next = random(11);
  const [left, other] = [Uint8Array.of(0, 1, 0), Uint8Array.of(1, 0, 1)];
  for (let trial = 0; trial < 40; trial++) {
    const spans = Array.from({ length: 30 }, () => [next() * 60 - 5, next() * 12, Math.floor(next() * 3)] as const);
    const together = new Raster(50, 2, INKS, ["none", "none", "none"]);
    together.cover.begin();
    for (const [x, long, category] of spans) together.cover.span(x, x + long, 1, category, true);
    together.finish(0, 1, WHITE, NO_HATCH, left);
    together.finish(1, 1, WHITE, NO_HATCH, other);
    const apart = new Raster(50, 2, INKS, ["none", "none", "none"]);
    for (const [line, without] of [[0, left], [1, other]] as const) {
      apart.cover.begin();
      for (const [x, long, category] of spans) if (without[category] !== 1) apart.cover.span(x, x + long, 1, category, true);
      apart.finish(line, 1, WHITE, NO_HATCH);
    }
    expect([...together.pixels]).toEqual([...apart.pixels]);
  }
});

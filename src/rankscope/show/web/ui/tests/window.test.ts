import { expect, test } from "vitest";
import { firstWindow } from "../src/timeline/layout.ts";
import { layoutOf } from "./layout.ts";
import { around, clamped, levelFor, panned, ticks, whole, zoomed } from "../src/timeline/window.ts";

const SPAN = 40_000_000;

test("zooming keeps the instant at the cursor under the cursor", () => {
  const window = { from: 10_000_000, to: 20_000_000 };
  for (const share of [0, 0.1, 0.5, 0.93]) {
    for (const factor of [0.2, 0.7, 1.3]) {
      const at = window.from + share * (window.to - window.from);
      const next = zoomed(window, factor, at, SPAN);
      expect(next.to - next.from).toBeCloseTo(factor * 10_000_000, 3);
      expect((at - next.from) / (next.to - next.from)).toBeCloseTo(share, 9);
    }
  }
});

test("no zoom goes closer than a nanosecond can be told, none beyond the run", () => {
  let window = whole(SPAN);
  for (let i = 0; i < 200; i++) window = zoomed(window, 0.5, 12_345_678, SPAN);
  expect(window.to - window.from).toBeCloseTo(64, 6);
  expect(window.from).toBeLessThan(12_345_678);
  expect(window.to).toBeGreaterThan(12_345_678);
  for (let i = 0; i < 200; i++) window = zoomed(window, 2, 0, SPAN);
  expect(window.to - window.from).toBeLessThanOrEqual(SPAN * 1.04 + 1);
});

test("panning stops at the run's ends, with a margin", () => {
  const window = { from: 0, to: 1_000_000 };
  expect(panned(window, -1e12, SPAN).from).toBeGreaterThanOrEqual(-0.02 * SPAN);
  expect(panned(window, 1e12, SPAN).to).toBeLessThanOrEqual(1.02 * SPAN);
  expect(panned(window, 5_000, SPAN)).toEqual({ from: 5_000, to: 1_005_000 });
});

test("any window, however it came, is put where there is something", () => {
  for (const window of [{ from: -1e15, to: 1e15 }, { from: 1e15, to: 1e15 + 5 }, { from: 5, to: 5 }]) {
    const next = clamped(window, SPAN);
    expect(next.to).toBeGreaterThan(next.from);
    expect(next.from).toBeLessThan(SPAN);
    expect(next.to).toBeGreaterThan(0);
  }
});

test("around an event lies the event", () => {
  const next = around(1000, 1000, SPAN, 3);
  expect(next.from).toBeLessThan(1000);
  expect(next.to).toBeGreaterThan(1000);
});

test("a level's bins are at most a pixel and more than a quarter of one", () => {
  for (let perPixel = 256; perPixel < 1e9; perPixel *= 1.37) {
    const level = levelFor(perPixel, 256, 4, 20);
    const bin = 256 * 4 ** level;
    expect(bin).toBeLessThanOrEqual(perPixel * 1.000001);
    expect(bin * 4).toBeGreaterThan(perPixel);
  }
  expect(levelFor(100, 256, 4, 20)).toBeLessThan(0);
  expect(levelFor(1e15, 256, 4, 5)).toBe(4);
});

test("ticks are round and apart", () => {
  for (const length of [70, 1e3, 12_345, 1e7, 3e10]) {
    const { step, at } = ticks({ from: 17, to: 17 + length }, 1000);
    expect(at.length).toBeGreaterThan(1);
    expect((step / length) * 1000).toBeGreaterThanOrEqual(109);
    for (const tick of at) expect(Math.abs(tick / step - Math.round(tick / step))).toBeLessThan(1e-6);
  }
});

test("the first view is of the device's activity, or of the steps where those are the lesser part of it", () => {
  const layout = layoutOf(2); // lanes from 0 to 1 ms, steps too
  expect(firstWindow({ ...layout, span: 10e6 })).toEqual({ from: -20_000, to: 1_020_000 });
  expect(firstWindow({ ...layout, span: 10e6, laneLast: layout.laneLast.map(() => 9e6) })).toEqual({ from: -20_000, to: 1_020_000 });
  expect(firstWindow({ ...layout, span: 10e6, laneLast: layout.laneLast.map(() => 1.5e6) })).toEqual({ from: -30_000, to: 1_530_000 });
  expect(firstWindow({ ...layout, laneEvents: layout.laneEvents.map(() => 0) })).toEqual(whole(1e6));
});

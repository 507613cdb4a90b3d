import { expect, test } from "vitest";
import { COLUMNS, framed, shares, summaryLanes } from "../src/timeline/minimap.ts";
import { pendingText } from "../src/timeline/watched_api.ts";
import { binsOf } from "./answers.ts";
import { layoutOf } from "./layout.ts";

test("the strip holds the time of every event, by category", () => {
  const lanes = [[{ start: 1000, end: 9000, category: 0, name: 0 }, { start: 20_000, end: 21_500, category: 1, name: 1 }], [{ start: 500, end: 30_000, category: 0, name: 0 }]];
  const all = { from: -700, to: 40_000 };
  const found = shares(binsOf(lanes, 64, 0), 64, 2, 2, all);
  const column = (all.to - all.from) / COLUMNS;
  const total = (category: number): number => found.reduce((sum, share, i) => sum + (i % 2 === category ? share * column * 2 : 0), 0);
  expect(total(0)).toBeCloseTo(8000 + 29_500, 6);
  expect(total(1)).toBeCloseTo(1500, 6);
  expect(found[2 * Math.floor((5000 - all.from) / column)]).toBeCloseTo(1, 6); // both ranks compute
  expect(Math.max(...found)).toBeLessThanOrEqual(1 + 1e-9);
});

test("the frame is where the window is, and wide enough to be grasped", () => {
  expect(framed({ from: 25, to: 75 }, { from: 0, to: 100 }, 1000)).toEqual({ left: 250, wide: 500 });
  expect(framed({ from: 0, to: 0.001 }, { from: 0, to: 100 }, 1000)).toEqual({ left: 0, wide: 6 });
  expect(framed({ from: 99.999, to: 100 }, { from: 0, to: 100 }, 1000)).toEqual({ left: 994, wide: 6 });
});

test("of many ranks, evenly spread ones are shown", () => {
  expect(summaryLanes(layoutOf(3), 64)).toEqual([0, 7, 14]);
  expect(summaryLanes(layoutOf(100), 4)).toEqual([0, 175, 350, 525]);
});

test("what is fetched is said with how much", () => {
  expect(pendingText([{ name: "tiles", lanes: 40 }, { name: "events", lanes: 8 }])).toBe("Loading 48 lanes … (2 requests)");
  expect(pendingText([{ name: "search", lanes: 0 }])).toBe("Searching all events …");
  expect(pendingText([{ name: "events", lanes: 1 }, { name: "range", lanes: 0 }])).toBe("Loading 1 lane · Adding up the range … (2 requests)");
});

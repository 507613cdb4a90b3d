import { expect, test } from "vitest";
import { axisStart } from "../src/charts/step_dots.ts";

test("the axis of step times starts at 0 where the steps differ much", () => {
  expect(axisStart([100e6, 700e6, 350e6])).toBe(0);
  expect(axisStart([])).toBe(0);
  expect(axisStart([null, 0])).toBe(0);
});

test("else it starts below the shortest step, and small differences stay small", () => {
  const from = axisStart([560e6, 600e6, null, 640e6]);
  expect(from).toBeLessThan(560e6);
  expect(from).toBeGreaterThan(400e6);
  // 1 % of difference: at most a quarter of the axis
  const close = axisStart([1000e6, 1010e6]);
  expect(10e6 / (1010e6 - close)).toBeLessThan(0.4);
});

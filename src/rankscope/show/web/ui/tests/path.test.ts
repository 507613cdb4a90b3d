import { describe, expect, it } from "vitest";
import { apart, boxesOf, firstPath, readPath, stepInView, type Path } from "../src/timeline/path.ts";
import { layoutOf } from "./layout.ts";

/** Parts of lane, start, end. */
function pathOf(parts: readonly (readonly [number, number, number])[]): Path {
  return {
    step: 3, of: "all", rank: new Uint32Array(parts.length), lane: Int32Array.from(parts, ([lane]) => lane),
    start: Float64Array.from(parts, ([, start]) => start), end: Float64Array.from(parts, ([, , end]) => end),
  };
}

describe("the critical path", () => {
  it("is of all ranks, of one, or of none in the address", () => {
    expect([readPath("all"), readPath("0"), readPath("12")]).toEqual(["all", 0, 12]);
    expect([undefined, "", "-1", "all ", "1.5"].map(readPath)).toEqual([null, null, null, null, null]);
    expect([firstPath(layoutOf(3)), firstPath(layoutOf(1))]).toEqual(["all", 0]);
  });

  it("is that of the step in the middle of the view, else of the nearest", () => {
    const layout = layoutOf(2); // steps from 0 to 500,000 and from there to 1,000,000
    const at = (from: number, to: number): number => stepInView({ layout, window: { from, to } }, "all");
    expect(at(0, 600_000)).toBe(250_000);
    expect(at(400_000, 800_000)).toBe(750_000);
    expect(at(2_000_000, 3_000_000)).toBe(750_000);
    expect(at(-900, -100)).toBe(250_000);
    const without = { ...layout, ranks: layout.ranks.map((rank) => ({ ...rank, steps: [] })) };
    expect(stepInView({ layout: without, window: { from: 100, to: 301 } }, 1)).toBe(200);
  });

  it("has boxes for its events in the window, on the rows that there are", () => {
    const path = pathOf([[0, 0, 100], [-1, 100, 200], [1, 200, 300], [2, 300, 400], [1, 400, 500]]);
    const rows = (lane: number): number => (lane === 2 ? -1 : lane * 10);
    expect(boxesOf(path, 0, 1000, 100, rows)).toEqual([{ x0: 0, x1: 10, row: 0 }, { x0: 20, x1: 30, row: 10 }, { x0: 40, x1: 50, row: 10 }]);
    expect(boxesOf(path, 250, 450, 100, rows)).toEqual([{ x0: -4, x1: 25, row: 10 }, { x0: 75, x1: 104, row: 10 }]);
  });

  it("has no boxes that overlap, however small its events are", () => {
    const parts = Array.from({ length: 5000 }, (_, i) => [i % 7 === 0 ? 1 : 0, i * 10, i * 10 + 9] as const);
    const boxes = apart(boxesOf(pathOf(parts), 0, 50_000, 100, (lane) => lane));
    for (const row of [0, 1]) {
      const own = boxes.filter((box) => box.row === row).sort((a, b) => a.x0 - b.x0);
      for (let i = 1; i < own.length; i++) expect(own[i]!.x0).toBeGreaterThan(own[i - 1]!.x1);
    }
  });
});

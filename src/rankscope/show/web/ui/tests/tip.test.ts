import { expect, test } from "vitest";
import { uncovered } from "../src/timeline/tip.ts";

test("self time is what no child covers, counted nanosecond by nanosecond", () => {
  let state = 7;
  const random = (below: number): number => (state = (state * 48271) % 2147483647) % below;
  for (let round = 0; round < 200; round++) {
    const [start, end] = [10, 10 + random(40)];
    const children = Array.from({ length: random(6) }, () => { const from = random(60); return [from, from + random(20)] as const; });
    let naive = 0;
    for (let at = start; at < end; at++) naive += Number(!children.some(([from, to]) => from <= at && at < to));
    expect(uncovered(start, end, children.map(([from]) => from), children.map(([, to]) => to))).toBe(naive);
  }
});

/** Counters in a window: least and largest of a bin where there are more samples than points (`api/counters`). */
import { lowerBound } from "../../timeline/tiles.ts";
import { ColumnFile } from "../column_file.ts";
import type { Numbers } from "./blocks.ts";
import { Growing } from "./growing.ts";

export function countersOf(block: Numbers, from: number, to: number, points: number): ColumnFile {
  const meta = (block.meta["counters"] ?? []) as readonly { name: string; unit: string; low: number; high: number }[];
  const [counter, ats, lows, highs] = [new Growing(), new Growing(), new Growing(), new Growing()];
  const add = (which: number, at: number, low: number, high: number): void => {
    counter.push(which);
    ats.push(at);
    lows.push(low);
    highs.push(high);
  };
  meta.forEach((_, which) => {
    const [at, value] = [block.steps(`${which}.at`), block.steps(`${which}.value`)];
    let first = lowerBound(at, from, 0, at.length);
    while (first < at.length && at[first] === from) first++;
    first = Math.max(first - 1, 0); // its value holds until the next
    const last = lowerBound(at, to, 0, at.length);
    if (last - first <= points) {
      for (let i = first; i < last; i++) add(which, at[i]!, value[i]!, value[i]!);
      return;
    }
    const bin = (i: number): number => Math.floor(((Math.max(at[i]!, from) - from) * points) / Math.max(to - from, 1));
    for (let i = first; i < last; ) {
      // A bin also holds the value that it began with, or a curve that only falls would not fall in it.
      const begin = i;
      let [low, high] = [value[Math.max(i - 1, first)]!, value[Math.max(i - 1, first)]!];
      for (const mine = bin(i); i < last && bin(i) === mine; i++) [low, high] = [Math.min(low, value[i]!), Math.max(high, value[i]!)];
      add(which, at[begin]!, low, high);
    }
  });
  return new ColumnFile({
    meta: { counters: meta.map(({ name, unit, low, high }) => ({ name, unit, low, high })) },
    columns: { counter: counter.u32(), at_ns: ats.f64(), low: lows.f64(), high: highs.f64() },
  });
}

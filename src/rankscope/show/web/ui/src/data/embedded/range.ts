/** A measured range: time per rank and category, and the top names by self time (`api/range`). */
import { ColumnFile } from "../column_file.ts";
import { nested } from "./nesting.ts";
import { touching } from "./rank_events.ts";
import type { EmbeddedRun } from "./run.ts";

const TOP = 40;
const [ANNOTATION, OTHER] = [7, 9];
const STEP = /^ProfilerStep#\d+$/;

export async function rangeOf(run: EmbeddedRun, from: number, to: number, ranks: ReadonlySet<number> | null): Promise<ColumnFile> {
  const rows: [rank: number, category: number, ns: number, count: number][] = [];
  const names = new Map<number, { count: number; ns: number; self: number }>();
  for (const plan of run.plans) {
    if (ranks && !ranks.has(plan.rank)) continue;
    const events = await run.rank(plan);
    const spans = new Map<number, [number, number][]>();
    const tracks = new Map<number, { start: number; end: number; sum: { self: number } }[]>();
    events.lanes.forEach((lane, index) => {
      if (plan.kinds[index] === "rank") return; // it repeats others
      const { low, high } = touching(lane, from, to);
      for (let i = low; i < high; i++) {
        const code = lane.code[i]!;
        const [start, end] = [Math.max(lane.start[i]!, from), Math.min(lane.end[i]!, to)];
        const category = run.codes.category[code]!;
        const mine = spans.get(category);
        if (mine) mine.push([start, end]);
        else spans.set(category, [[start, end]]);
        if (plan.kinds[index] === "annotation") continue; // drawn around the kernels of another track
        const key = run.codes.name[code]! * 256 + category;
        const sum = names.get(key) ?? { count: 0, ns: 0, self: 0 };
        sum.count++;
        sum.ns += end - start;
        names.set(key, sum);
        const track = tracks.get(plan.track[index]!);
        if (track) track.push({ start, end, sum });
        else tracks.set(plan.track[index]!, [{ start, end, sum }]);
      }
    });
    for (const track of tracks.values()) for (const { span, self } of nested(track)) span.sum.self += self;
    for (const [category, mine] of spans) rows.push([plan.rank, category, union(mine), mine.length]);
  }
  rows.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  // Steps and the profiler's marks of its own recording enclose everything.
  const top = [...names].filter(([key]) => key % 256 !== OTHER && !(key % 256 === ANNOTATION && STEP.test(run.head.names[Math.floor(key / 256)] ?? ""))).sort(([a, x], [b, y]) => y.self - x.self || y.ns - x.ns || a - b).slice(0, TOP);
  return new ColumnFile({
    meta: { from_ns: from, to_ns: to, left_out: [] },
    columns: {
      busy_rank: Uint32Array.from(rows, (row) => row[0]), busy_category: Uint8Array.from(rows, (row) => row[1]), busy_ns: Float64Array.from(rows, (row) => row[2]), busy_count: Uint32Array.from(rows, (row) => row[3]),
      top_name: Uint32Array.from(top, ([key]) => Math.floor(key / 256)), top_category: Uint8Array.from(top, ([key]) => key % 256), top_count: Uint32Array.from(top, ([, sum]) => sum.count), top_self_ns: Float64Array.from(top, ([, sum]) => sum.self), top_ns: Float64Array.from(top, ([, sum]) => sum.ns),
    },
  });
}

/** How much time spans cover together. */
function union(spans: [number, number][]): number {
  spans.sort((a, b) => a[0] - b[0]);
  let total = 0;
  let reach = -Infinity;
  for (const [start, end] of spans) {
    if (end > reach) total += end - Math.max(start, reach);
    reach = Math.max(reach, end);
  }
  return total;
}

/** A small run for tests: ranks of a whole lane, a stream, a thread of three depths, a folded thread of Python frames. */
import { readLayout, type Layout } from "../src/timeline/layout.ts";

export function layoutOf(ranks: number): Layout {
  const tracks: unknown[] = [];
  const lanes = { track: [] as number[], depth: [] as number[], overflow: [] as number[], events: [] as number[], first_ns: [] as number[], last_ns: [] as number[] };
  const rows: unknown[] = [];
  for (let rank = 0; rank < ranks; rank++) {
    const first = tracks.length;
    for (const [kind, title, depth] of [["rank", "", 1], ["stream", "stream 7", 1], ["thread", "thread 11", 3], ["python", "Python 11", 2]] as const) {
      for (let each = 0; each < depth; each++) {
        lanes.track.push(tracks.length);
        lanes.depth.push(each);
        lanes.overflow.push(0);
        lanes.events.push(100);
        lanes.first_ns.push(0);
        lanes.last_ns.push(1e6);
      }
      tracks.push({ rank, kind, title, lanes: [lanes.track.length - depth, depth], folded: kind === "python" });
    }
    rows.push({ rank, host: `host${rank >> 3}`, device: "H100", mesh: `dp${rank}`, offset_ns: 0, residual_ns: null, steps: [[3, 0, 5e5], [4, 5e5, 1e6]], tracks: [first, 4], counters: ["memory"] });
  }
  return readLayout({ span_ns: 1e6, aligned: true, residual_ns: 10, names: 3, base_bin_ns: 256, factor: 4, levels: 6, categories: [{ name: "compute", title: "Compute" }, { name: "communication", title: "Communication" }], ranks: rows, tracks, lanes });
}

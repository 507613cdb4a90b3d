/** What the server would answer about lanes of events, worked out naively. */
import { ColumnFile } from "../src/data/column_file.ts";
import { TILE_BINS } from "../src/timeline/tiles.ts";
import { columnFile } from "./column_file.ts";

export interface Event { start: number; end: number; category: number; name: number }

const u32 = (values: number[]): Uint32Array => new Uint32Array(values);

/** What the server would say of lanes: the bins of a column, or its events. */
export function binsOf(lanes: Event[][], binWidth: number, first: number): ColumnFile {
  const [owner, bin, count, name, row, busyOwner, busyBin, category, busy] = [[], [], [], [], [], [], [], [], []] as number[][];
  lanes.forEach((events, lane) => {
    for (let b = first; b < first + TILE_BINS; b++) {
      const [low, high] = [b * binWidth, (b + 1) * binWidth];
      const touching = events.filter(({ start, end }) => end > low && start < high);
      if (touching.length === 0) continue;
      const inside = touching.map((event) => ({ ...event, index: events.indexOf(event), part: Math.min(event.end, high) - Math.max(event.start, low) }));
      const most = inside.reduce((a, c) => (c.part > a.part ? c : a));
      owner!.push(lane); bin!.push(b); count!.push(inside.filter(({ start }) => start >= low).length); name!.push(most.name); row!.push(most.index);
      for (const each of new Set(inside.map((one) => one.category))) {
        busyOwner!.push(lane); busyBin!.push(b); category!.push(each); busy!.push(inside.filter((one) => one.category === each).reduce((sum, one) => sum + one.part, 0));
      }
    }
  });
  return new ColumnFile(columnFile({}, {
    bin_lane: u32(owner!), bin: u32(bin!), bin_count: u32(count!), bin_name: u32(name!), bin_row: u32(row!),
    busy_lane: u32(busyOwner!), busy_bin: u32(busyBin!), busy_category: new Uint8Array(category!), busy_ns: new Float64Array(busy!),
  }));
}

export function eventsOf(lanes: Event[][], from: number, to: number): ColumnFile {
  const all = lanes.flatMap((events, lane) => events.map((event, row) => ({ ...event, lane, row })).filter(({ start, end }) => end > from && start < to));
  return new ColumnFile(columnFile({ more: false }, {
    lane: u32(all.map(({ lane }) => lane)), row: u32(all.map(({ row }) => row)), start_ns: new Float64Array(all.map(({ start }) => start)), end_ns: new Float64Array(all.map(({ end }) => end)),
    name: u32(all.map(({ name }) => name)), category: new Uint8Array(all.map(({ category }) => category)),
  }));
}

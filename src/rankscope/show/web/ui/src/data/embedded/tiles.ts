/** The pyramid's bins, aggregated from single events on request: the numbers of `api/tiles`. */
import { ColumnFile } from "../column_file.ts";
import { Growing } from "./growing.ts";
import { touching, type Codes, type Lane } from "./rank_events.ts";

const CATEGORIES = 16;

class Table {
  readonly lane = new Growing();
  readonly bin = new Growing();
  readonly count = new Growing();
  readonly name = new Growing();
  readonly row = new Growing();
  readonly busyLane = new Growing();
  readonly busyBin = new Growing();
  readonly busyCategory = new Growing();
  readonly busy = new Growing();
}

/**
 * @param lanes - each lane's number and its events; null if it is not in the report.
 * @param level - the level, for the answer's head.
 * @param width - the bins' width in ns, a power of two.
 * @param first - the first bin.
 * @param bins - how many.
 */
export function tilesOf(lanes: readonly { readonly id: number; readonly lane: Lane | null }[], codes: Codes, level: number, width: number, first: number, bins: number): ColumnFile {
  const table = new Table();
  lanes.forEach(({ lane }, index) => {
    if (lane?.overlaps) overlapping(table, index, lane, codes, width, first, bins);
    else if (lane) following(table, index, lane, codes, width, first, bins);
  });
  return new ColumnFile({
    meta: { level, bin_ns: width, lanes: lanes.map(({ id }) => id) },
    columns: {
      bin_lane: table.lane.u32(), bin: table.bin.u32(), bin_count: table.count.u32(), bin_name: table.name.u32(), bin_row: table.row.u32(),
      busy_lane: table.busyLane.u32(), busy_bin: table.busyBin.u32(), busy_category: table.busyCategory.u8(), busy_ns: table.busy.f64(),
    },
  });
}

/** Events one after the other: bins come in their order. */
function following(table: Table, index: number, lane: Lane, codes: Codes, width: number, first: number, bins: number): void {
  const { start, end, code } = lane;
  const { low, high } = touching(lane, first * width, (first + bins) * width);
  const busy = new Float64Array(CATEGORIES);
  let [open, count, best, row] = [-1, 0, -1, 0];
  const close = (): void => {
    if (open < 0) return;
    table.lane.push(index);
    table.bin.push(open);
    table.count.push(count);
    table.name.push(codes.name[code[row]!]!);
    table.row.push(row);
    for (let category = 0; category < CATEGORIES; category++) {
      const ns = busy[category]!;
      if (ns <= 0) continue;
      table.busyLane.push(index);
      table.busyBin.push(open);
      table.busyCategory.push(category);
      table.busy.push(ns);
      busy[category] = 0;
    }
  };
  for (let i = low; i < high; i++) {
    const [from, to, kind] = [start[i]!, end[i]!, codes.category[code[i]!]!];
    const begin = Math.floor(from / width);
    const last = Math.min(Math.max(Math.floor((to - 1) / width), begin), first + bins - 1);
    for (let bin = Math.max(begin, first); bin <= last; bin++) {
      if (bin !== open) {
        close();
        [open, count, best, row] = [bin, 0, -1, i];
      }
      const ns = Math.min(to, (bin + 1) * width) - Math.max(from, bin * width);
      if (bin === begin) count++;
      if (ns > best) [best, row] = [ns, i];
      busy[kind]! += ns;
    }
  }
  close();
}

/** Events that overlap: each bin's sums side by side, the time of each category as its union. */
function overlapping(table: Table, index: number, lane: Lane, codes: Codes, width: number, first: number, bins: number): void {
  const { start, end, code } = lane;
  const [counts, best, rows] = [new Float64Array(bins), new Float64Array(bins).fill(-1), new Float64Array(bins)];
  const { before, low, high } = touching(lane, first * width, (first + bins) * width);
  const take = (i: number): void => {
    const [from, to] = [start[i]!, end[i]!];
    const begin = Math.floor(from / width);
    const last = Math.min(Math.max(Math.floor((to - 1) / width), begin), first + bins - 1);
    for (let bin = Math.max(begin, first); bin <= last; bin++) {
      const ns = Math.min(to, (bin + 1) * width) - Math.max(from, bin * width);
      if (bin === begin) counts[bin - first]!++;
      if (ns > best[bin - first]!) [best[bin - first], rows[bin - first]] = [ns, i];
    }
  };
  for (const i of before) take(i);
  for (let i = low; i < high; i++) take(i);
  for (let bin = 0; bin < bins; bin++) {
    if (best[bin]! < 0) continue;
    table.lane.push(index);
    table.bin.push(bin + first);
    table.count.push(counts[bin]!);
    table.name.push(codes.name[code[rows[bin]!]!]!);
    table.row.push(rows[bin]!);
  }
  const busy = new Float64Array(bins * CATEGORIES);
  const { merged } = lane.overlaps!;
  for (let i = 0; i < merged.start.length; i++) {
    const [from, to] = [merged.start[i]!, merged.end[i]!];
    if (from >= (first + bins) * width) break;
    const last = Math.min(Math.floor((to - 1) / width), first + bins - 1);
    for (let bin = Math.max(Math.floor(from / width), first); bin <= last; bin++) {
      busy[(bin - first) * CATEGORIES + merged.category[i]!]! += Math.min(to, (bin + 1) * width) - Math.max(from, bin * width);
    }
  }
  for (let at = 0; at < busy.length; at++) {
    if (busy[at]! <= 0) continue;
    table.busyLane.push(index);
    table.busyBin.push(first + Math.floor(at / CATEGORIES));
    table.busyCategory.push(at % CATEGORIES);
    table.busy.push(busy[at]!);
  }
}

/** The numbers of `api/events`. */
export function eventsOf(lanes: readonly { readonly id: number; readonly lane: Lane | null }[], codes: Codes, from: number, to: number, limit: number): ColumnFile {
  const [owner, row, start, end, name, category] = [new Growing(), new Growing(), new Growing(), new Growing(), new Growing(), new Growing()];
  let left = limit;
  let more = false;
  lanes.forEach(({ lane }, index) => {
    if (!lane) return;
    const { before, low, high } = touching(lane, from, to);
    const take = (i: number): void => {
      owner.push(index);
      row.push(i);
      start.push(lane.start[i]!);
      end.push(lane.end[i]!);
      name.push(codes.name[lane.code[i]!]!);
      category.push(lane.category ? lane.category[i]! : codes.category[lane.code[i]!]!);
    };
    const count = before.length + high - low;
    if (count > left) more = true;
    for (const i of before.slice(0, left)) take(i);
    for (let i = low, stop = Math.min(high, low + Math.max(0, left - before.length)); i < stop; i++) take(i);
    left -= Math.min(left, count);
  });
  return new ColumnFile({
    meta: { more, lanes: lanes.map(({ id }) => id) },
    columns: { lane: owner.u32(), row: row.u32(), start_ns: start.f64(), end_ns: end.f64(), name: name.u32(), category: category.u8() },
  });
}

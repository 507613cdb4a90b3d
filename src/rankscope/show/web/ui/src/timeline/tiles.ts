/**
 * Tiles that were fetched, the least lately used dropped first. A tile is one lane in one column of time: a stretch of
 * `TILE_BINS` bins at one level. Answers are kept whole, as the server sent them; a tile is a range of rows in one.
 */
import type { ColumnFile } from "../data/column_file.ts";

export const TILE_BINS = 1024;

/** One answer of `api/tiles`. */
export interface BinBatch {
  readonly bins: Uint32Array;
  readonly counts: Uint32Array;
  readonly names: Uint32Array;
  readonly rows: Uint32Array;
  readonly busyBins: Uint32Array;
  readonly busyCategories: Uint8Array;
  readonly busy: Float64Array;
}

/** One answer of `api/events`. */
export interface EventBatch {
  readonly rows: Uint32Array;
  readonly starts: Float64Array;
  readonly ends: Float64Array;
  readonly names: Uint32Array;
  readonly categories: Uint8Array;
}

/** `covered`: its runs of bins that one event covers, found when they are first asked for. */
export interface BinTile { readonly batch: BinBatch; readonly from: number; readonly to: number; readonly busyFrom: number; readonly busyTo: number; readonly count: number; covered: Uint32Array | null }
/** `longest`: of its events, to find those that began before an instant; in a rank's own lane they overlap. */
export interface EventTile { readonly batch: EventBatch; readonly from: number; readonly to: number; readonly longest: number }

const NONE = new Uint32Array(0);
const EMPTY_BINS: BinTile = { batch: { bins: NONE, counts: NONE, names: NONE, rows: NONE, busyBins: NONE, busyCategories: new Uint8Array(0), busy: new Float64Array(0) }, from: 0, to: 0, busyFrom: 0, busyTo: 0, count: 0, covered: NONE };
const EMPTY_EVENTS: EventTile = { batch: { rows: NONE, starts: new Float64Array(0), ends: new Float64Array(0), names: NONE, categories: new Uint8Array(0) }, from: 0, to: 0, longest: 0 };

interface Held { readonly bytes: number; used: number; readonly column: TileColumn; readonly lanes: readonly number[]; readonly exact: boolean }

/** All lanes of one stretch of time at one level. */
export class TileColumn {
  readonly level: number;
  readonly index: number;
  readonly start: number;
  readonly end: number;
  readonly binWidth: number;
  readonly bins = new Map<number, BinTile>();
  readonly events = new Map<number, EventTile>();
  readonly held = new Set<Held>();
  /** Lanes with too many events in this stretch to be drawn one by one. */
  readonly crowded = new Set<number>();
  /** Lanes that were asked for. */
  readonly pendingBins = new Set<number>();
  readonly pendingEvents = new Set<number>();

  constructor(level: number, index: number, binWidth: number) {
    this.level = level;
    this.index = index;
    this.binWidth = binWidth;
    this.start = index * TILE_BINS * binWidth;
    this.end = this.start + TILE_BINS * binWidth;
  }
}

export class TileCache {
  readonly #budget: number;
  readonly #baseBin: number;
  readonly #factor: number;
  readonly #columns = new Map<number, TileColumn>();
  readonly #held = new Set<Held>();
  #bytes = 0;
  #clock = 0;
  /** Grows with each change: the same window and version give the same picture. */
  version = 0;

  constructor(baseBin: number, factor: number, budget = 120e6) {
    this.#baseBin = baseBin;
    this.#factor = factor;
    this.#budget = budget;
  }

  get bytes(): number {
    return this.#bytes;
  }

  binWidth(level: number): number {
    return this.#baseBin * this.#factor ** level;
  }

  /** The column that holds an instant; made if there is none yet. */
  column(level: number, index: number): TileColumn {
    const key = (level + 8) * 2 ** 44 + index;
    let column = this.#columns.get(key);
    if (!column) {
      column = new TileColumn(level, index, this.binWidth(level));
      this.#columns.set(key, column);
    }
    return column;
  }

  columnsOf(level: number, from: number, to: number): TileColumn[] {
    const length = TILE_BINS * this.binWidth(level);
    const columns: TileColumn[] = [];
    for (let index = Math.max(0, Math.floor(from / length)); index * length < to; index++) columns.push(this.column(level, index));
    return columns;
  }

  /** Marks a column as in use: what was used last goes last. */
  touch(column: TileColumn): void {
    const now = ++this.#clock;
    for (const held of column.held) held.used = now;
  }

  /** Takes an answer of `api/tiles` for these lanes. Lanes without a bin in it are empty tiles, which is known too. */
  addBins(column: TileColumn, lanes: readonly number[], file: ColumnFile): void {
    const owners = file.u32("bin_lane");
    const busyOwners = file.u32("busy_lane");
    const batch: BinBatch = {
      bins: file.u32("bin"), counts: file.u32("bin_count"), names: file.u32("bin_name"), rows: file.u32("bin_row"),
      busyBins: file.u32("busy_bin"), busyCategories: file.u8("busy_category"), busy: file.f64("busy_ns"),
    };
    let [at, busyAt] = [0, 0];
    lanes.forEach((lane, index) => {
      const [from, busyFrom] = [at, busyAt];
      let count = 0;
      while (at < owners.length && owners[at] === index) count += batch.counts[at++] ?? 0;
      while (busyAt < busyOwners.length && busyOwners[busyAt] === index) busyAt++;
      column.bins.set(lane, { batch, from, to: at, busyFrom, busyTo: busyAt, count, covered: null });
    });
    this.#hold({ bytes: file.bytes + lanes.length * 120, used: ++this.#clock, column, lanes, exact: false });
  }

  /** Known from the layout: this lane has no events in this range. */
  addEmpty(column: TileColumn, lane: number): void {
    this.version++;
    column.bins.set(lane, EMPTY_BINS);
    column.events.set(lane, EMPTY_EVENTS);
  }

  addEvents(column: TileColumn, lanes: readonly number[], file: ColumnFile): void {
    const owners = file.u32("lane");
    const batch: EventBatch = { rows: file.u32("row"), starts: file.f64("start_ns"), ends: file.f64("end_ns"), names: file.u32("name"), categories: file.u8("category") };
    let at = 0;
    lanes.forEach((lane, index) => {
      const from = at;
      let longest = 0;
      for (; at < owners.length && owners[at] === index; at++) longest = Math.max(longest, batch.ends[at]! - batch.starts[at]!);
      column.events.set(lane, { batch, from, to: at, longest });
    });
    this.#hold({ bytes: file.bytes + lanes.length * 90, used: ++this.#clock, column, lanes, exact: true });
  }

  #hold(held: Held): void {
    this.version++;
    this.#held.add(held);
    held.column.held.add(held);
    this.#bytes += held.bytes;
    if (this.#bytes <= this.#budget) return;
    for (const old of [...this.#held].sort((a, b) => a.used - b.used)) {
      if (this.#bytes <= this.#budget * 0.8 || old === held) break;
      this.#held.delete(old);
      old.column.held.delete(old);
      this.#bytes -= old.bytes;
      for (const lane of old.lanes) (old.exact ? old.column.events : old.column.bins).delete(lane);
    }
  }
}

/** A run that is shorter than this has no room for a word, for a bin is at most a pixel wide. */
const SHORTEST_RUN = 16;

/** Bins side by side that one event covers, as pairs of the first and the last place in the tile's batch. */
export function coveredRuns(tile: BinTile): Uint32Array {
  if (tile.covered) return tile.covered;
  const { bins, rows } = tile.batch;
  const found: number[] = [];
  for (let i = tile.from; i < tile.to; ) {
    let j = i;
    while (j + 1 < tile.to && rows[j + 1] === rows[i] && bins[j + 1] === bins[j]! + 1) j++;
    if (j - i + 1 >= SHORTEST_RUN) found.push(i, j);
    i = j + 1;
  }
  return tile.covered = Uint32Array.from(found);
}

/** First index in [from, to) whose value is not below `value`; the values rise. */
export function lowerBound(values: ArrayLike<number>, value: number, from: number, to: number): number {
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((values[middle] ?? 0) < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

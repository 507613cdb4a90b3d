/** What is under a point: an exact event where there is one, else the event that covers most of the bin there. */
import { categoryOf, type Known } from "./covering.ts";
import type { Scene } from "./draw.ts";
import type { Api } from "../data/api.ts";
import { lowerBound, TILE_BINS, type BinTile, type EventTile } from "./tiles.ts";

/** Events asked for around a click. */
const MOST_NEAR = 5000;

export interface Hit {
  readonly lane: number;
  readonly row: number;
  readonly name: number;
  /** Known where exact events are drawn. */
  readonly start: number | null;
  readonly end: number | null;
  /** How many events begin in the bin; 1 where exact. */
  readonly count: number;
}

/** What is not drawn where one points: categories with a 1 in `left`; and known names, to determine a bin's category. */
export interface Part { readonly left: Uint8Array; readonly known: Known }

/** The event at an instant on a lane, or the nearest within `reach` nanoseconds; of a row in two parts only one that is drawn in the `part`. */
export function hitAt(scene: Scene, lane: number, at: number, reach: number, part: Part | null = null): Hit | null {
  const column = scene.columns.find((each) => at >= each.start && at < each.end);
  if (!column) return null;
  const events = column.events.get(lane);
  if (events) return exactHit(events, lane, at, reach, part?.left ?? null);
  const bins = column.bins.get(lane);
  if (bins && bins.to > bins.from) return binHit(bins, lane, at, column.binWidth, reach, part);
  for (let level = Math.max(scene.level, -1) + 1; level < scene.levels; level++) {
    const width = scene.cache.binWidth(level);
    const coarse = scene.cache.column(level, Math.max(0, Math.floor(at / (TILE_BINS * width)))).bins.get(lane);
    if (coarse) return binHit(coarse, lane, at, width, reach, part);
  }
  return null;
}

/** The same by asking the server for the events there: a bin names but one event, perhaps of the other part. */
export async function askedHit(api: Pick<Api, "columns">, lane: number, at: number, reach: number, left: Uint8Array): Promise<Hit | null> {
  const file = await api.columns("events", { lanes: lane, from: Math.max(0, Math.floor(at - reach)), to: Math.max(1, Math.ceil(at + reach)), limit: MOST_NEAR });
  const batch = { rows: file.u32("row"), starts: file.f64("start_ns"), ends: file.f64("end_ns"), names: file.u32("name"), categories: file.u8("category") };
  return exactHit({ batch, from: 0, to: batch.rows.length, longest: Infinity }, lane, at, reach, left);
}

function exactHit(tile: EventTile, lane: number, at: number, reach: number, left: Uint8Array | null): Hit | null {
  const { starts, ends, rows, names, categories } = tile.batch;
  let best = -1;
  let least = reach;
  for (let i = lowerBound(starts, at - reach - tile.longest, tile.from, tile.to); i < tile.to && starts[i]! <= at + reach; i++) {
    if (left?.[categories[i]!] === 1) continue;
    const away = Math.max(starts[i]! - at, at - ends[i]!, 0);
    // Of several at one instant the shortest is the hardest to reach otherwise.
    if (away < least || (away === least && (best < 0 || ends[i]! - starts[i]! < ends[best]! - starts[best]!))) [best, least] = [i, away];
  }
  return best < 0 ? null : { lane, row: rows[best]!, name: names[best]!, start: starts[best]!, end: ends[best]!, count: 1 };
}

function binHit(tile: BinTile, lane: number, at: number, width: number, reach: number, part: Part | null): Hit | null {
  const { bins, rows, names, counts } = tile.batch;
  const bin = Math.floor(at / width);
  const next = lowerBound(bins, bin, tile.from, tile.to);
  let best = -1;
  let least = Math.ceil(reach / width);
  for (const i of [next - 1, next]) {
    if (i < tile.from || i >= tile.to) continue;
    if (part) {
      const category = categoryOf(tile, i, i, width, part.known);
      if (category < 0 || part.left[category] === 1) continue;
    }
    const away = Math.abs(bins[i]! - bin);
    if (away < least || (away === least && best < 0)) [best, least] = [i, away];
  }
  return best < 0 ? null : { lane, row: rows[best]!, name: names[best]!, start: null, end: null, count: counts[best]! };
}

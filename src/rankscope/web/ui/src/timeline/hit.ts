/** What lies under a point: an exact event where there is one, else the event that covers most of the bin there. */
import type { Scene } from "./draw.ts";
import { lowerBound, TILE_BINS, type BinTile, type EventTile } from "./tiles.ts";

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

/** The event at an instant on a lane, or the nearest within `reach` nanoseconds; rather not one of the categories with a 1 in `left`. */
export function hitAt(scene: Scene, lane: number, at: number, reach: number, left: Uint8Array | null = null): Hit | null {
  const column = scene.columns.find((each) => at >= each.start && at < each.end);
  if (!column) return null;
  const events = column.events.get(lane);
  if (events) return exactHit(events, lane, at, reach, left) ?? (left ? exactHit(events, lane, at, reach, null) : null);
  const bins = column.bins.get(lane);
  if (bins && bins.to > bins.from) return binHit(bins, lane, at, column.binWidth, reach);
  for (let level = Math.max(scene.level, -1) + 1; level < scene.levels; level++) {
    const width = scene.cache.binWidth(level);
    const coarse = scene.cache.column(level, Math.max(0, Math.floor(at / (TILE_BINS * width)))).bins.get(lane);
    if (coarse) return binHit(coarse, lane, at, width, reach);
  }
  return null;
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

function binHit(tile: BinTile, lane: number, at: number, width: number, reach: number): Hit | null {
  const { bins, rows, names, counts } = tile.batch;
  const bin = Math.floor(at / width);
  const next = lowerBound(bins, bin, tile.from, tile.to);
  let best = -1;
  let least = Math.ceil(reach / width);
  for (const i of [next - 1, next]) {
    if (i < tile.from || i >= tile.to) continue;
    const away = Math.abs(bins[i]! - bin);
    if (away < least || (away === least && best < 0)) [best, least] = [i, away];
  }
  return best < 0 ? null : { lane, row: rows[best]!, name: names[best]!, start: null, end: null, count: counts[best]! };
}

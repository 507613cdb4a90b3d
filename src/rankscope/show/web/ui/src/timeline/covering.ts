/**
 * Which category the event that covers a bin is of. A bin says which event covers most of it and how long each category
 * is busy in it, not whose time that is: where several events overlap it must follow from the bins, or from what is known.
 */
import { lowerBound, type BinTile } from "./tiles.ts";

/** The category of each event name on ranks' own lanes, as far as it has been seen without doubt. */
export type Known = Map<number, number>;

/** The categories (bits) that the event of the entries `i` to `j` of a tile, bins side by side, may be of: those busy in each, all the time in the inner ones. */
function possible(tile: BinTile, i: number, j: number, binWidth: number): number {
  const { bins, busyBins, busyCategories, busy } = tile.batch;
  const [first, last] = [bins[i]!, bins[j]!];
  let every = -1;
  let at = lowerBound(busyBins, first, tile.busyFrom, tile.busyTo);
  for (let bin = first; bin <= last; bin++) {
    const inner = bin > first && bin < last;
    let here = 0;
    for (; at < tile.busyTo && busyBins[at] === bin; at++) if (!inner || busy[at]! >= binWidth) here |= 1 << busyCategories[at]!;
    every &= here;
    if ((every & (every - 1)) === 0) break; // one is left, or none
  }
  return every;
}

/** The category of the event that covers the entries `i` to `j` of a tile, or -1 where it cannot be determined. */
export function categoryOf(tile: BinTile, i: number, j: number, binWidth: number, known: Known): number {
  const may = possible(tile, i, j, binWidth);
  const name = tile.batch.names[i]!;
  if (may !== 0 && (may & (may - 1)) === 0) {
    const category = 31 - Math.clz32(may);
    known.set(name, category);
    return category;
  }
  const category = known.get(name);
  return category !== undefined && (may & (1 << category)) !== 0 ? category : -1;
}

/** Fills one row of the raster from the tiles at hand: exact events where they are, else bins, else coarser bins. */
import type { Cover } from "./cover.ts";
import { lowerBound, TILE_BINS, type BinTile, type EventTile, type TileCache, type TileColumn } from "./tiles.ts";
import type { Window } from "./window.ts";

export interface Scene {
  readonly cache: TileCache;
  readonly window: Window;
  readonly width: number;
  /** The level of the bins, possibly below 0: then only exact events are fine enough. */
  readonly level: number;
  readonly levels: number;
  readonly columns: readonly TileColumn[];
  /** The part of the window that is to be drawn: all of it, or what a move brought in. */
  readonly part: Window;
}

/** Whether the exact data was drawn, not that of a coarser level. */
export function drawLane(cover: Cover, scene: Scene, lane: number): boolean {
  let complete = true;
  for (const column of scene.columns) {
    if (column.end <= scene.part.from || column.start >= scene.part.to) continue;
    const events = column.events.get(lane);
    if (events) drawEvents(cover, scene, column, events);
    else {
      const bins = column.bins.get(lane);
      if (bins) drawBins(cover, scene, column, bins, column.start, column.end);
      else {
        complete = false;
        drawCoarser(cover, scene, lane, column.start, column.end);
      }
    }
  }
  return complete;
}

function drawEvents(cover: Cover, scene: Scene, column: TileColumn, tile: EventTile): void {
  const { starts, ends, categories } = tile.batch;
  const { from, to } = scene.window;
  const scale = scene.width / (to - from);
  const first = lowerBound(starts, Math.max(scene.part.from, column.start) - tile.longest, tile.from, tile.to);
  cover.events(starts, ends, categories, first, tile.to, from, scale, column.start, Math.min(scene.part.to, column.end));
}

function drawBins(cover: Cover, scene: Scene, column: TileColumn, tile: BinTile, start: number, end: number): void {
  const { busyBins, busyCategories, busy } = tile.batch;
  const { from, to } = scene.window;
  const width = column.binWidth;
  const scale = scene.width / (to - from);
  const step = width * scale;
  const firstBin = Math.floor(Math.max(scene.part.from, start) / width);
  const lastBin = Math.ceil(Math.min(scene.part.to, end) / width);
  const low = lowerBound(busyBins, firstBin, tile.busyFrom, tile.busyTo);
  const high = lowerBound(busyBins, lastBin, low, tile.busyTo);
  cover.bins(busyBins, busyCategories, busy, low, high, -from * scale, step, width);
}

function drawCoarser(cover: Cover, scene: Scene, lane: number, start: number, end: number): void {
  for (let level = Math.max(scene.level, -1) + 1; level < scene.levels; level++) {
    const length = TILE_BINS * scene.cache.binWidth(level);
    const column = scene.cache.column(level, Math.max(0, Math.floor(start / length)));
    const tile = column.bins.get(lane);
    if (tile) {
      drawBins(cover, scene, column, tile, start, end);
      return;
    }
  }
}

/**
 * Which lanes are rows on the screen, and where: ranks folded to one row each or opened into tracks, tracks to their
 * first depth or all of them. Positions are CSS pixels from the top of the whole; nothing here depends on time.
 */
import type { Layout } from "./layout.ts";

export const enum RowKind { Rank, Track, Lane, Counter }

export interface Rows {
  readonly length: number;
  readonly height: number;
  readonly kind: Uint8Array;
  /** Index of the rank (Rank, Counter) or of the track (Track, Lane). */
  readonly of: Uint32Array;
  /** The lane drawn in the row, or -1. */
  readonly lane: Int32Array;
  readonly top: Float64Array;
  readonly size: Float64Array;
  /** Lane to row; -1 where it is not on the screen. */
  readonly rowOfLane: Int32Array;
  readonly rowOfRank: Int32Array;
  /** Rank rows lower than their words: labels are drawn at intervals. */
  readonly dense: boolean;
}

export interface Folding {
  /** Ranks that are opened. */
  readonly ranks: ReadonlySet<number>;
  /** Tracks that are folded otherwise than the layout says. */
  readonly tracks: ReadonlySet<number>;
  /** Ranks and tracks whose names contain this. */
  readonly filter: string;
  readonly counters: boolean;
}

export const RANK_ROW = 22;
export const LANE_ROW = 16;
/** A few ranks, none open: their rows fill the height. */
const TALLEST = 64;
/** A rank's row this high shows moving data below computing, so that overlap is seen as such. */
const SPLIT_FROM = 14;
const SPLIT_AT = 0.6;
const FOLDED_ROW = 18;
const COUNTER_ROW = 30;
const GAP = 3;
const LOWEST = 2;

export function isFolded(layout: Layout, folding: Folding, track: number): boolean {
  return (layout.tracks[track]?.folded ?? false) !== folding.tracks.has(track);
}

export function rowsOf(layout: Layout, folding: Folding, viewHeight: number): Rows {
  const words = folding.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shownRanks = layout.ranks.filter((rank) => words.length === 0 || matches(rankText(rank), words) || tracksOf(layout, rank).some((track) => matches(`${rankText(rank)} ${track.title.toLowerCase()} ${track.kind}`, words)));
  const anyOpen = shownRanks.some((rank) => folding.ranks.has(rank.rank));
  const fitting = viewHeight / Math.max(1, shownRanks.length) - 1;
  // Every rank visible at once, as long as its row can still be seen; beyond that, and once one is opened, they scroll.
  const rankRow = shownRanks.length * (RANK_ROW + GAP) <= viewHeight || (anyOpen && shownRanks.length <= 64) ? RANK_ROW : Math.max(LOWEST, Math.min(RANK_ROW, Math.floor(fitting)));
  const closedRow = !anyOpen && rankRow >= RANK_ROW ? Math.min(TALLEST, Math.max(RANK_ROW, Math.floor(fitting) - GAP)) : rankRow;
  const gap = rankRow >= RANK_ROW ? GAP : rankRow >= 6 ? 1 : 0;

  const kind: number[] = [], of: number[] = [], lane: number[] = [], top: number[] = [], size: number[] = [];
  const rowOfLane = new Int32Array(layout.laneTrack.length).fill(-1);
  const rowOfRank = new Int32Array(layout.ranks.length).fill(-1);
  let y = 0;
  const add = (what: RowKind, index: number, its: number, height: number, after: number): void => {
    if (its >= 0) rowOfLane[its] = kind.length;
    kind.push(what); of.push(index); lane.push(its); top.push(y); size.push(height);
    y += height + after;
  };
  for (const rank of shownRanks) {
    const tracks = tracksOf(layout, rank);
    const own = tracks.find((track) => track.kind === "rank");
    const open = folding.ranks.has(rank.rank);
    rowOfRank[rank.index] = kind.length;
    add(RowKind.Rank, rank.index, own && own.lanes > 0 ? own.firstLane : -1, open ? RANK_ROW : closedRow, gap);
    if (!open) continue;
    if (folding.counters) rank.counters.forEach((_, index) => add(RowKind.Counter, rank.index, -1 - index, COUNTER_ROW, GAP));
    const narrowed = words.length > 0 && !matches(rankText(rank), words);
    for (const track of tracks) {
      if (track.kind === "rank" || track.lanes === 0) continue;
      if (narrowed && !matches(`${rankText(rank)} ${track.title.toLowerCase()} ${track.kind}`, words)) continue;
      if (isFolded(layout, folding, track.index)) {
        add(RowKind.Track, track.index, track.firstLane, FOLDED_ROW, GAP);
        continue;
      }
      for (let each = 0; each < track.lanes; each++) {
        add(each === 0 ? RowKind.Track : RowKind.Lane, track.index, track.firstLane + each, each === 0 ? FOLDED_ROW : LANE_ROW, each === track.lanes - 1 ? GAP : 0);
      }
    }
    y += 4;
  }
  return {
    length: kind.length, height: y, kind: Uint8Array.from(kind), of: Uint32Array.from(of), lane: Int32Array.from(lane),
    top: Float64Array.from(top), size: Float64Array.from(size), rowOfLane, rowOfRank, dense: rankRow < 14,
  };
}

/** How much of a row is above its lower part, in pixels; 0 where it is not split. */
export function upperPart(rows: Rows, row: number): number {
  const size = rows.size[row] ?? 0;
  return rows.kind[row] === RowKind.Rank && size >= SPLIT_FROM ? Math.round(size * SPLIT_AT) : 0;
}

/** The first row whose lower edge is below y. */
export function firstRowAt(rows: Rows, y: number): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((rows.top[middle] ?? 0) + (rows.size[middle] ?? 0) <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The row under y, or -1 between two. */
export function rowAt(rows: Rows, y: number): number {
  const row = firstRowAt(rows, y);
  return row < rows.length && (rows.top[row] ?? 0) <= y ? row : -1;
}

/** The row of a lane: its own, or if that is folded, its track's or its rank's. */
export function standIn(layout: Layout, rows: Rows, lane: number): number {
  const own = rows.rowOfLane[lane] ?? -1;
  if (own >= 0) return own;
  const track = layout.tracks[layout.laneTrack[lane] ?? 0];
  if (!track) return -1;
  const head = rows.rowOfLane[track.firstLane] ?? -1;
  if (head >= 0) return head;
  const rank = layout.ranks.findIndex((each) => each.rank === track.rank);
  return rank < 0 ? -1 : rows.rowOfRank[rank] ?? -1;
}

function tracksOf(layout: Layout, rank: { firstTrack: number; tracks: number }): Layout["tracks"] {
  return layout.tracks.slice(rank.firstTrack, rank.firstTrack + rank.tracks);
}

function rankText(rank: { rank: number; host: string; device: string; mesh: string }): string {
  return `rank ${rank.rank} ${rank.host} ${rank.device} ${rank.mesh}`.toLowerCase();
}

function matches(text: string, words: readonly string[]): boolean {
  const parts = text.split(/\s+/);
  return words.every((word) => (/^\d+$/.test(word) ? parts.includes(word) : text.includes(word)));
}

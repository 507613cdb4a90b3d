/**
 * Which lanes are rows on the screen, and where: ranks folded to one row each or opened into tracks, tracks to their
 * first depth or all of them. Positions are CSS pixels from the top of the whole; nothing here depends on time.
 */
import type { RankGroup } from "./groups.ts";
import { laneFilter } from "./lane_filter.ts";
import type { Layout, RankRow, Track } from "./layout.ts";
import type { NameTrack } from "./name_tracks.ts";

export const enum RowKind { Rank, Track, Lane, Counter, More, Name, Named, Group }

export interface Rows {
  readonly length: number;
  readonly height: number;
  readonly kind: Uint8Array;
  /** Index of the rank (Rank, Counter, More, Named), of the track (Track, Lane), of the track of a name (Name), or of the group (Group). */
  readonly of: Uint32Array;
  /** The lane drawn in the row, or -1. */
  readonly lane: Int32Array;
  readonly top: Float64Array;
  readonly size: Float64Array;
  /** Lane to row; -1 where it is not on the screen. */
  readonly rowOfLane: Int32Array;
  readonly rowOfRank: Int32Array;
  /** The ranks that are neither hidden nor filtered out, also those in closed groups. */
  readonly ranks: readonly RankRow[];
  /** The same for lanes of names. */
  readonly rowOfNamed: ReadonlyMap<number, number>;
  /** Rank rows lower than their words: labels are drawn at intervals. */
  readonly dense: boolean;
  /** How high the tracks of names are, the first of all rows. */
  readonly namesHeight: number;
  /** So many rows at the top stay there when the others scroll, and how high they are. */
  readonly pinned: number;
  readonly pinnedHeight: number;
}

/** Ranks by number and tracks by index. */
export interface Named {
  readonly ranks: ReadonlySet<number>;
  readonly tracks: ReadonlySet<number>;
}

export interface Folding {
  /** Ranks that are opened. */
  readonly ranks: ReadonlySet<number>;
  /** Tracks that are folded otherwise than the layout says. */
  readonly tracks: ReadonlySet<number>;
  /** Ranks and tracks whose names contain these words, or match the expression between slashes. */
  readonly filter: string;
  readonly counters: boolean;
  readonly pinned: Named;
  readonly hidden: Named;
  /** Ranks whose minor tracks are shown: the profiler's own and threads without a name. */
  readonly minor: ReadonlySet<number>;
  /** Tracks of names, and their lane on a rank. */
  readonly names: readonly NameTrack[];
  readonly nameLane: (name: string, rank: number) => number;
  /** Ranks by index in the order of their rows; null: as they come. */
  readonly order: readonly number[] | null;
  /** Groups of ranks; null for none. */
  readonly groups: readonly RankGroup[] | null;
  /** By index, the groups that show all of their ranks. */
  readonly openGroups: ReadonlySet<number>;
  /** Ranks that findings name: closed groups show them too. */
  readonly found: ReadonlyMap<number, unknown>;
}

export const RANK_ROW = 22;
export const LANE_ROW = 16;
/** A few ranks, none open: their rows fill the height. */
const TALLEST = 96;
/** A rank's row this high shows moving data below computing, so that overlap is seen as such. */
const SPLIT_FROM = 14;
const SPLIT_AT = 0.6;
const FOLDED_ROW = 18;
const COUNTER_ROW = 30;
const MORE_ROW = 16;
const GAP = 3;
const LOWEST = 2;
/** Of the height, for all lanes of one name: where there are more, they are lower. */
const NAME_SHARE = 0.3;
/** More of the height than this is not pinned: something has to be left to scroll. */
const MOST_PINNED = 0.6;

export function isFolded(layout: Layout, folding: Folding, track: number): boolean {
  return (layout.tracks[track]?.folded ?? false) !== folding.tracks.has(track);
}

const PROFILER = /^(?:Trace )?PyTorch Profiler\b/;
const NAMELESS = /^(?:thread -?\d+|no thread)$/;

/** Tracks that rarely matter: the profiler's own, and nameless threads where others have names. */
export function minorTracks(tracks: readonly Track[]): ReadonlySet<number> {
  const known = tracks.some(({ kind, title }) => kind === "thread" && !NAMELESS.test(title));
  return new Set(tracks.filter(({ kind, title }) => (kind === "annotation" && (PROFILER.test(title) || NAMELESS.test(title))) || (kind === "thread" && known && NAMELESS.test(title))).map(({ index }) => index));
}

export function rowsOf(layout: Layout, folding: Folding, viewHeight: number): Rows {
  const { pinned, hidden } = folding;
  const filter = laneFilter(folding.filter);
  const ordered = folding.order ? folding.order.map((index) => layout.ranks[index]!) : layout.ranks;
  const rest = ordered.filter((rank) => !pinned.ranks.has(rank.rank) && !hidden.ranks.has(rank.rank) && (filter.rank(rank) || tracksOf(layout, rank).some((track) => filter.track(rank, track))));
  const first = ordered.filter((rank) => pinned.ranks.has(rank.rank));
  const parts = inGroups(folding, rest);
  const shown = [...first, ...parts.flatMap(({ ranks }) => ranks)];
  const anyOpen = shown.some((rank) => folding.ranks.has(rank.rank)) || pinned.tracks.size > 0;
  const heads = folding.groups ? parts.length * (FOLDED_ROW + GAP) : 0;
  const fitting = (viewHeight - heads) / Math.max(1, shown.length) - 1;
  // Every rank visible at once, as long as its row can still be seen; beyond that, in groups, and once one is opened, they scroll.
  const rankRow = folding.groups || shown.length * (RANK_ROW + GAP) <= viewHeight || (anyOpen && shown.length <= 64) ? RANK_ROW : Math.max(LOWEST, Math.min(RANK_ROW, Math.floor(fitting)));
  const closedRow = !anyOpen && rankRow >= RANK_ROW ? Math.min(TALLEST, Math.max(RANK_ROW, Math.floor(fitting) - GAP)) : rankRow;
  const gap = rankRow >= RANK_ROW ? GAP : rankRow >= 6 ? 1 : 0;

  const kind: number[] = [], of: number[] = [], lane: number[] = [], top: number[] = [], size: number[] = [];
  const rowOfLane = new Int32Array(layout.laneTrack.length).fill(-1);
  const rowOfRank = new Int32Array(layout.ranks.length).fill(-1);
  const rowOfNamed = new Map<number, number>();
  let y = 0;
  const add = (what: RowKind, index: number, its: number, height: number, after: number): void => {
    if (its >= 0) rowOfLane[its] = kind.length;
    kind.push(what); of.push(index); lane.push(its); top.push(y); size.push(height);
    y += height + after;
  };
  const addTrack = (track: Track): void => {
    if (isFolded(layout, folding, track.index)) return add(RowKind.Track, track.index, track.firstLane, FOLDED_ROW, GAP);
    for (let each = 0; each < track.lanes; each++) {
      add(each === 0 ? RowKind.Track : RowKind.Lane, track.index, track.firstLane + each, each === 0 ? FOLDED_ROW : LANE_ROW, each === track.lanes - 1 ? GAP : 0);
    }
  };
  const addRank = (rank: RankRow, kept: boolean): void => {
    const tracks = tracksOf(layout, rank);
    const own = tracks.find((track) => track.kind === "rank");
    const open = folding.ranks.has(rank.rank);
    rowOfRank[rank.index] = kind.length;
    add(RowKind.Rank, rank.index, own && own.lanes > 0 ? own.firstLane : -1, open || kept ? RANK_ROW : closedRow, gap);
    if (!open) return;
    if (folding.counters) rank.counters.forEach((_, index) => add(RowKind.Counter, rank.index, -1 - index, COUNTER_ROW, GAP));
    const narrowed = !kept && !filter.rank(rank);
    const there = tracks.filter((track) => track.kind !== "rank" && track.lanes > 0 && !pinned.tracks.has(track.index) && !hidden.tracks.has(track.index) && (!narrowed || filter.track(rank, track)));
    const minor = narrowed ? new Set<number>() : minorTracks(there); // what is asked for by name is shown
    const all = minor.size === 0 || folding.minor.has(rank.rank);
    for (const track of there) if (all || !minor.has(track.index)) addTrack(track);
    if (minor.size > 0) add(RowKind.More, rank.index, -1, MORE_ROW, GAP);
    y += 4;
  };
  folding.names.forEach(({ name, ranks }, index) => {
    const of = ranks ? ordered.filter(({ rank }) => ranks.has(rank)) : shown;
    const size = Math.max(LOWEST, Math.min(LANE_ROW, Math.floor((NAME_SHARE * viewHeight) / Math.max(1, of.length))));
    add(RowKind.Name, index, -1, LANE_ROW, 0);
    for (const rank of of) {
      const its = folding.nameLane(name, rank.rank);
      rowOfNamed.set(its, kind.length);
      add(RowKind.Named, rank.index, its, size, size >= 6 ? 1 : 0);
    }
    y += GAP;
  });
  const namesHeight = y;
  // Closed ones first: where not all fit, the lanes of an open one scroll.
  for (const rank of [...first].sort((a, b) => Number(folding.ranks.has(a.rank)) - Number(folding.ranks.has(b.rank)))) addRank(rank, true);
  for (const rank of ordered) for (const track of tracksOf(layout, rank)) if (pinned.tracks.has(track.index) && track.lanes > 0) addTrack(track);
  if (y > 0) y += 4;
  let [pins, pinnedHeight] = [kind.length, y];
  while (pins > 0 && pinnedHeight > viewHeight * MOST_PINNED) pinnedHeight = top[--pins]!;
  for (const { group, ranks } of parts) {
    if (group) add(RowKind.Group, group.index, -1, FOLDED_ROW, gap);
    for (const rank of ranks) addRank(rank, false);
    if (group) y += GAP;
  }
  return {
    length: kind.length, height: y, kind: Uint8Array.from(kind), of: Uint32Array.from(of), lane: Int32Array.from(lane),
    top: Float64Array.from(top), size: Float64Array.from(size), rowOfLane, rowOfRank, ranks: [...first, ...rest], rowOfNamed, namesHeight, dense: rankRow < 14, pinned: pins, pinnedHeight,
  };
}

/** So many ranks of a closed group are shown where no value is known. */
const WITHOUT_VALUES = 3;

/** The ranks that have rows: all of open groups, of closed ones those with extreme values, those that findings name and those that are opened. */
function inGroups({ groups, openGroups, ranks: opened, found }: Folding, ranks: readonly RankRow[]): { group: RankGroup | null; ranks: readonly RankRow[] }[] {
  if (!groups) return [{ group: null, ranks }];
  return groups.map((group) => {
    const own = new Set(group.ranks);
    const members = ranks.filter((rank) => own.has(rank));
    const extremes = group.extremes.length > 0 ? group.extremes : members.slice(0, WITHOUT_VALUES);
    const kept = new Map(extremes.map(({ rank }, place) => [rank, place]));
    const few = members.filter(({ rank }) => kept.has(rank) || opened.has(rank) || found.has(rank)).sort((a, b) => (kept.get(a.rank) ?? 3) - (kept.get(b.rank) ?? 3));
    return { group, members, ranks: openGroups.has(group.index) ? members : few };
  }).filter(({ members }) => members.length > 0);
}

/** Whether a row's `of` is a rank, not a track. */
export function isOfRank(kind: RowKind | undefined): boolean {
  return kind === RowKind.Rank || kind === RowKind.Counter || kind === RowKind.More || kind === RowKind.Named;
}

/** The top of a row in the picture, which is scrolled by so many pixels. */
export function screenTop(rows: Rows, row: number, scroll: number): number {
  return (rows.top[row] ?? 0) - (row < rows.pinned ? 0 : scroll);
}

/** The first of the rows that scroll to be seen in the picture. */
export function firstScrolled(rows: Rows, scroll: number): number {
  return Math.max(rows.pinned, firstRowAt(rows, scroll + rows.pinnedHeight));
}

/** The row at a height of the picture, or -1 between two. */
export function rowOnScreen(rows: Rows, y: number, scroll: number): number {
  return rowAt(rows, y < rows.pinnedHeight ? y : y + scroll);
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

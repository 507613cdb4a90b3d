/** The critical path of a step: which events it has, and the boxes that they take in the picture. */
import type { ColumnFile } from "../data/column_file.ts";
import type { Layout } from "./layout.ts";
import { lowerBound } from "./tiles.ts";
import type { Window } from "./window.ts";

/** The path across all ranks, or a rank's own. */
export type PathOf = "all" | number;

export interface Path {
  readonly step: number | null;
  readonly of: PathOf;
  /** In order of time; parts of no event have lane -1. */
  readonly rank: Uint32Array;
  readonly lane: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
}

export function readPath(text: string | undefined): PathOf | null {
  return text === "all" ? "all" : /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}

/** What a toggle shows first: across ranks where there are several. */
export function firstPath(layout: Layout): PathOf {
  return layout.ranks.length > 1 ? "all" : layout.ranks[0]?.rank ?? "all";
}

/** The middle of the step that is in the middle of the view, on the rank or on the first one; the middle itself without steps. */
export function stepInView({ layout, window }: { readonly layout: Layout; readonly window: Window }, of: PathOf): number {
  const middle = (window.from + window.to) / 2;
  const rank = layout.ranks.find(({ rank: each }) => each === of) ?? layout.ranks[0];
  let [nearest, least] = [middle, Infinity];
  for (const { start, end } of rank?.steps ?? []) {
    const away = Math.max(start - middle, middle - end, 0);
    if (away < least) [nearest, least] = [(start + end) / 2, away];
  }
  return Math.max(0, Math.floor(nearest));
}

export interface Box { readonly x0: number; readonly x1: number; readonly row: number }

/** The boxes of a path's events within the window, in pixels and in order of time; `rowOf` gives -1 for a lane without a row. */
export function boxesOf(path: Path, from: number, to: number, width: number, rowOf: (lane: number) => number): Box[] {
  const found: Box[] = [];
  const scale = width / (to - from);
  for (let i = lowerBound(path.end, from, 0, path.end.length); i < path.start.length && path.start[i]! < to; i++) {
    if (path.lane[i]! < 0) continue;
    const row = rowOf(path.lane[i]!);
    if (row < 0) continue;
    const x0 = Math.max(-4, (path.start[i]! - from) * scale);
    const x1 = Math.min(width + 4, Math.max((path.end[i]! - from) * scale, x0 + 1));
    const last = found.at(-1);
    if (last?.row === row && x0 < last.x1 + 0.5) found[found.length - 1] = { ...last, x1: Math.max(last.x1, x1) };
    else found.push({ x0, x1, row });
  }
  return found;
}

/** The same without overlaps, which even-odd filling would fill. */
export function apart(boxes: readonly Box[]): Box[] {
  const last = new Map<number, number>();
  const found: Box[] = [];
  for (const box of boxes) {
    const at = last.get(box.row);
    const before = at === undefined ? undefined : found[at];
    if (at !== undefined && before && box.x0 <= before.x1) found[at] = { ...before, x1: Math.max(before.x1, box.x1) };
    else last.set(box.row, found.push(box) - 1);
  }
  return found;
}

/** The path as `api/path` sends it. */
export function pathOf(file: ColumnFile, of: PathOf): Path {
  const step = file.meta["step"];
  return { step: typeof step === "number" ? step : null, of, rank: file.u32("rank"), lane: file.i32("lane"), start: file.f64("start_ns"), end: file.f64("end_ns") };
}

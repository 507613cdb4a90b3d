/** The lanes of a run as `api/timeline` gives them, checked, in typed arrays. */
import type { Finding } from "../data/payload.ts";
import { categoryOf, type Category } from "../theme/categories.ts";
import { around, whole, type Window } from "./window.ts";

export type TrackKind = "rank" | "stream" | "thread" | "python" | "annotation";

export interface Track {
  readonly index: number;
  readonly rank: number;
  readonly kind: TrackKind;
  readonly title: string;
  readonly firstLane: number;
  readonly lanes: number;
  readonly folded: boolean;
}

export interface Step {
  readonly step: number | null;
  readonly start: number;
  readonly end: number;
}

export interface RankRow {
  readonly index: number;
  readonly rank: number;
  readonly host: string;
  readonly device: string;
  readonly mesh: string;
  readonly residual: number | null;
  readonly steps: readonly Step[];
  readonly firstTrack: number;
  readonly tracks: number;
  readonly counters: readonly string[];
}

/** An event: its number within a lane. */
export interface Place {
  readonly lane: number;
  readonly row: number;
}

export interface Layout {
  readonly span: number;
  readonly aligned: boolean;
  readonly residual: number | null;
  readonly names: number;
  readonly baseBin: number;
  readonly factor: number;
  readonly levels: number;
  readonly categories: readonly { readonly category: Category; readonly title: string }[];
  readonly ranks: readonly RankRow[];
  readonly tracks: readonly Track[];
  readonly laneTrack: Uint32Array;
  readonly laneDepth: Uint32Array;
  readonly laneOverflow: Uint8Array;
  readonly laneEvents: Float64Array;
  readonly laneFirst: Float64Array;
  readonly laneLast: Float64Array;
}

/* eslint-disable @typescript-eslint/no-explicit-any */
export function readLayout(json: any): Layout {
  const lanes = json.lanes ?? {};
  const tracks: Track[] = (json.tracks ?? []).map((raw: any, index: number): Track => ({
    index, rank: Number(raw.rank), kind: raw.kind, title: text(raw.title), firstLane: raw.lanes[0], lanes: raw.lanes[1], folded: Boolean(raw.folded),
  }));
  return {
    span: Math.max(1, Number(json.span_ns)),
    aligned: Boolean(json.aligned),
    residual: json.residual_ns ?? null,
    names: Number(json.names ?? 0),
    baseBin: Number(json.base_bin_ns),
    factor: Number(json.factor),
    levels: Math.max(1, Number(json.levels)),
    categories: (json.categories ?? []).map((raw: any) => ({ category: categoryOf(raw.name), title: text(raw.title) })),
    ranks: (json.ranks ?? []).map((raw: any, index: number): RankRow => ({
      index, rank: Number(raw.rank), host: text(raw.host), device: text(raw.device), mesh: meshText(raw.mesh), residual: raw.residual_ns ?? null,
      steps: (raw.steps ?? []).map(([step, start, end]: [number | null, number, number]) => ({ step, start, end })),
      firstTrack: raw.tracks[0], tracks: raw.tracks[1], counters: (raw.counters ?? []).map(text),
    })),
    tracks,
    laneTrack: Uint32Array.from(lanes.track ?? []),
    laneDepth: Uint32Array.from(lanes.depth ?? []),
    laneOverflow: Uint8Array.from((lanes.overflow ?? []).map(Number)),
    laneEvents: Float64Array.from(lanes.events ?? []),
    laneFirst: Float64Array.from(lanes.first_ns ?? []),
    laneLast: Float64Array.from(lanes.last_ns ?? []),
  };
}

function text(value: unknown): string {
  return value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** `dp=3, tp=0`. */
function meshText(mesh: unknown): string {
  if (typeof mesh !== "object" || mesh === null) return text(mesh);
  return Object.entries(mesh).map(([name, place]) => `${name}=${text(place)}`).join(", ");
}

export function rankIndex(layout: Layout, rank: number): number {
  return layout.ranks.findIndex((row) => row.rank === rank);
}

/** What to call a lane: its track's name, and how deep in it. */
export function laneTitle(layout: Layout, lane: number): string {
  const track = layout.tracks[layout.laneTrack[lane] ?? 0];
  if (!track) return `lane ${lane}`;
  const depth = layout.laneDepth[lane] ?? 0;
  return `rank ${track.rank}${track.kind === "rank" ? " (summary lane)" : `, ${track.title}`}${depth > 0 ? `, depth ${depth}` : ""}${layout.laneOverflow[lane] ? " (overflow)" : ""}`;
}

/**
 * What to show first: where the ranks' summary lanes have events (the device's, else the host's), or, where most of that is
 * outside of the recorded steps, the steps.
 */
export function firstWindow(layout: Layout): Window {
  const own = layout.tracks.filter((track) => track.kind === "rank" && track.lanes > 0 && (layout.laneEvents[track.firstLane] ?? 0) > 0).map((track) => track.firstLane);
  if (own.length === 0) return whole(layout.span);
  const active = { from: least(own.map((lane) => layout.laneFirst[lane] ?? 0)), to: greatest(own.map((lane) => layout.laneLast[lane] ?? 0)) };
  const steps = layout.ranks.flatMap((rank) => rank.steps.filter(({ step }) => step !== null));
  const recorded = { from: least(steps.map(({ start }) => start)), to: greatest(steps.map(({ end }) => end)) };
  const inside = recorded.to > recorded.from && 2 * (recorded.to - recorded.from) < active.to - active.from;
  const { from, to } = inside ? recorded : active;
  return to > from && to - from < layout.span ? around(from, to, layout.span, 0.02) : whole(layout.span);
}

function least(values: readonly number[]): number {
  return values.reduce((low, value) => Math.min(low, value), Infinity);
}

function greatest(values: readonly number[]): number {
  return values.reduce((high, value) => Math.max(high, value), -Infinity);
}

/** The stretch that a step takes on a rank, or on all of them, with some room; null where it is not known. */
export function stepWindow(layout: Layout, step: number, rank: number | null): Window | null {
  const range = stepRange(layout, step, rank);
  return range && around(range.from, range.to, layout.span, 0.03);
}

/** The same to the nanosecond. */
export function stepRange(layout: Layout, step: number, rank: number | null): Window | null {
  const ranks = rank === null ? layout.ranks : layout.ranks.filter((each) => each.rank === rank);
  const found = ranks.flatMap((each) => each.steps.filter((one) => one.step === step));
  if (found.length === 0) return null;
  return { from: Math.min(...found.map((one) => one.start)), to: Math.max(...found.map((one) => one.end)) };
}

/** Where a finding is seen best: the server's word, else the first rank and step that it names. */
export function placeOf(finding: Finding): { readonly rank: number | null; readonly step: number | null } {
  return finding.place ?? { rank: finding.ranks[0] ?? null, step: finding.steps[0] ?? null };
}

/** The timeline's state in the URL, and back: a link opens the same window, rows, selection and range. */
import { readChoice, writeChoice, type CallsChoice } from "../calls/choice.ts";
import { readEventTime, type EventTime } from "./anchor.ts";
import { readFlags, writeFlags, type Flag } from "./flags.ts";
import { isOrder, type Order } from "./order.ts";
import { readNumbers, writeNumbers } from "./lists.ts";
import { readNameTracks, writeNameTracks, type NameTrack } from "./name_tracks.ts";
import { readPath, type PathOf } from "./path.ts";
import type { Named } from "./rows.ts";
import type { Window } from "./window.ts";

export interface Address {
  readonly window: Window | null;
  readonly selected: { readonly lane: number; readonly row: number } | null;
  readonly measured: Window | null;
  /** How the calls of the measured range are shown: of the named step, if no range is. */
  readonly calls: CallsChoice | null;
  readonly open: ReadonlySet<number> | null;
  readonly tracks: ReadonlySet<number>;
  readonly filter: string;
  readonly query: string;
  readonly counters: boolean;
  /** Null for the ranks that are pinned at first. */
  readonly pinned: { readonly ranks: ReadonlySet<number> | null; readonly tracks: ReadonlySet<number> };
  readonly hidden: Named;
  readonly minor: ReadonlySet<number>;
  readonly order: Order;
  /** What the ranks are grouped by, empty for no groups, null for what it is at first; and by index the groups that are open. */
  readonly groupBy: string | null;
  readonly openGroups: ReadonlySet<number>;
  /** Whose critical path is shown. */
  readonly path: PathOf | null;
  readonly flags: readonly Flag[];
  /** The tracks of names. */
  readonly nameTracks: readonly NameTrack[];
  /** Whether the events with the selected one's name become a track. */
  readonly track: boolean;
  /** A place named in words: the page's other views lead here. */
  readonly rank: number | null;
  readonly step: number | null;
  /** An event named by its rank and time: findings and rows of tables lead here. */
  readonly event: EventTime | null;
  /** A stretch of time of a rank: rows of tables about gaps lead here. */
  readonly range: EventTime | null;
  /** The name of events, or an expression between slashes, the first of which is selected (on the rank, if there is one): rows of tables lead here. */
  readonly name: string;
  /** How far down: the rank at the top, and how many pixels of it are above. */
  readonly at: { readonly rank: number; readonly by: number } | null;
}

/** How rows are where the address names nothing. */
export interface AtFirst {
  readonly open: ReadonlySet<number>;
  readonly pinned: ReadonlySet<number>;
  readonly groupBy: string;
}

/** What a view has, as the address keeps it. */
export type Written = Omit<Address, "rank" | "step" | "event" | "range" | "name" | "track" | "pinned" | "groupBy"> & { readonly pinned: Named; readonly groupBy: string };

export function readAddress(params: ReadonlyMap<string, string>): Address {
  return {
    window: stretch(params.get("t")),
    selected: pair(params.get("sel")),
    measured: stretch(params.get("m")),
    calls: readChoice(params.get("calls")),
    open: params.has("open") ? readNumbers(params.get("open")) : null,
    tracks: readNumbers(params.get("tracks")),
    filter: params.get("lanes") ?? "",
    query: params.get("find") ?? "",
    counters: params.get("counters") !== "0",
    pinned: { ranks: params.has("pin") ? readNumbers(params.get("pin")) : null, tracks: readNumbers(params.get("pintracks")) },
    hidden: { ranks: readNumbers(params.get("hide")), tracks: readNumbers(params.get("hidetracks")) },
    minor: readNumbers(params.get("all")),
    path: readPath(params.get("path")),
    order: orderNamed(params.get("order")),
    groupBy: params.get("group")?.replace(/^none$/, "") ?? null,
    openGroups: readNumbers(params.get("groups")),
    flags: readFlags(params.get("flags") ?? ""),
    nameTracks: readNameTracks(params.get("names") ?? ""),
    track: params.get("track") === "1",
    rank: whole(params.get("rank")),
    step: whole(params.get("step")),
    event: readEventTime(params.get("ev")),
    range: readEventTime(params.get("range")),
    name: params.get("name") ?? "",
    at: below(params.get("at")),
  };
}

/** Every parameter of the timeline, empty where it is as it is at first, so that an old one is taken out. */
export function writeAddress(address: Written, first: AtFirst): Record<string, string> {
  const { window, selected, measured, open, groupBy } = address;
  return {
    t: window ? span(window) : "",
    sel: selected ? `${selected.lane}.${selected.row}` : "",
    m: measured ? span(measured) : "",
    calls: measured && address.calls ? writeChoice(address.calls) : "",
    open: open && !sameNumbers(open, first.open) ? writeNumbers(open) || "none" : "",
    tracks: writeNumbers(address.tracks),
    lanes: address.filter,
    find: address.query,
    counters: address.counters ? "" : "0",
    pin: sameNumbers(address.pinned.ranks, first.pinned) ? "" : writeNumbers(address.pinned.ranks) || "none", pintracks: writeNumbers(address.pinned.tracks), hide: writeNumbers(address.hidden.ranks), hidetracks: writeNumbers(address.hidden.tracks),
    all: writeNumbers(address.minor),
    order: address.order === "rank" ? "" : address.order,
    group: groupBy === first.groupBy ? "" : groupBy || "none", groups: groupBy === "" ? "" : writeNumbers(address.openGroups),
    path: address.path === null ? "" : String(address.path),
    flags: writeFlags(address.flags),
    names: writeNameTracks(address.nameTracks),
    at: address.at === null ? "" : `${address.at.rank}.${address.at.by}`,
    rank: "", step: "", ev: "", range: "", name: "", track: "",
  };
}

/** The window as it is in the address: a link opens exactly the place where it was made. */
export function rounded(window: Window): Window {
  return stretch(span(window)) ?? window;
}

function span(window: Window): string {
  const digits = window.to - window.from < 2000 ? 2 : 0;
  return `${trim(window.from.toFixed(digits))}_${trim(window.to.toFixed(digits))}`;
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function stretch(text: string | undefined): Window | null {
  const found = /^(-?\d+(?:\.\d+)?)_(-?\d+(?:\.\d+)?)$/.exec(text ?? "");
  if (!found) return null;
  const [from, to] = [Number(found[1]), Number(found[2])];
  return Number.isFinite(from) && Number.isFinite(to) && to > from ? { from, to } : null;
}

function orderNamed(text: string | undefined): Order {
  return isOrder(text) ? text : "rank";
}

function pair(text: string | undefined): { lane: number; row: number } | null {
  const found = /^(\d{1,9})\.(\d{1,10})$/.exec(text ?? "");
  return found ? { lane: Number(found[1]), row: Number(found[2]) } : null;
}

function below(text: string | undefined): { rank: number; by: number } | null {
  const found = pair(text);
  return found && { rank: found.lane, by: found.row };
}

function whole(text: string | undefined): number | null {
  return /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}

export function sameNumbers(a: ReadonlySet<number>, b: ReadonlySet<number>): boolean {
  return a.size === b.size && [...a].every((value) => b.has(value));
}

/**
 * Tracks of a name: all events with it, in a lane of their own for each rank, pinned to the top. These lanes are numbered
 * behind those of the run, and fetched by the name's number and ranks (`api/named/…`).
 */
import type { Params } from "../data/api.ts";
import type { Layout, Place } from "./layout.ts";
import { escaped, ranges, readNumbers, unescaped, writeNumbers } from "./lists.ts";
import type { Names } from "./names.ts";

export interface NameTrack {
  readonly name: string;
  /** Of which ranks; null for all that are shown. */
  readonly ranks: ReadonlySet<number> | null;
}

/** With more ranks than this, a track is at first of the event’s rank and the pinned ones. */
export const FEW_RANKS = 8;
const MOST = 12;
const LONGEST = 4000;

/** The lanes of names: which name and rank each has, and how it is requested. */
export class NameLanes {
  readonly #layout: Layout;
  readonly #names: Names;
  readonly #known: string[] = [];
  /** Ranks in ascending order, as the server has their lanes. */
  readonly #ranks: readonly number[];

  readonly #drawn: ReadonlySet<number>;

  constructor(layout: Layout, names: Names) {
    this.#layout = layout;
    this.#names = names;
    this.#drawn = new Set(layout.ranks.filter(({ tracks }) => tracks > 0).map(({ rank }) => rank));
    this.#ranks = layout.ranks.map(({ rank }) => rank).sort((a, b) => a - b);
  }

  /** The lane of a name on a rank. */
  lane(name: string, rank: number): number {
    let index = this.#known.indexOf(name);
    if (index < 0) index = this.#known.push(name) - 1;
    return this.#layout.laneTrack.length + index * this.#ranks.length + this.#ranks.indexOf(rank);
  }

  /** What a lane is of; null for a lane of the run. */
  of(lane: number): { readonly name: string; readonly rank: number } | null {
    const at = lane - this.#layout.laneTrack.length;
    if (at < 0) return null;
    return { name: this.#known[Math.floor(at / this.#ranks.length)] ?? "", rank: this.#ranks[at % this.#ranks.length] ?? 0 };
  }

  /** Lanes of one group can be requested together: those of the run (−1), or of one name. */
  group(lane: number): number {
    const at = lane - this.#layout.laneTrack.length;
    return at < 0 ? -1 : Math.floor(at / this.#ranks.length);
  }

  /** Whether a lane can be fetched; null while the name’s number is not known yet. */
  exists(lane: number): boolean | null {
    const own = this.of(lane);
    if (own && !this.#drawn.has(own.rank)) return false;
    if (!own || this.#names.idOf(own.name) !== undefined) return true;
    return this.#names.complete ? false : null;
  }

  /** The address and parameters for tiles or events of lanes of one group, ascending. */
  request(what: "tiles" | "events", lanes: readonly number[]): [string, Params] {
    const own = this.of(lanes[0] ?? -1);
    if (!own) return [what, { lanes: ranges(lanes) }];
    return [`named/${what}`, { name: this.#names.idOf(own.name), ranks: ranges(lanes.map((lane) => this.of(lane)!.rank)) }];
  }

  /** The same for one event. */
  event({ lane, row }: Place): [string, Params] {
    const own = this.of(lane);
    return own ? ["named/event", { name: this.#names.idOf(own.name), rank: own.rank, row }] : ["event", { lane, row }];
  }
}

/** The ranks whose events a new track shows. */
export function ranksOfTrack(layout: Layout, rank: number, pinned: ReadonlySet<number>): ReadonlySet<number> | null {
  return layout.ranks.length <= FEW_RANKS ? null : new Set([rank, ...pinned]);
}

/** The tracks with one more, with other ranks, or, where it is there with these ranks, without it. */
export function toggled(tracks: readonly NameTrack[], { name, ranks }: NameTrack): NameTrack[] {
  const others = tracks.filter((track) => track.name !== name);
  const old = tracks.find((track) => track.name === name);
  if (old && writeNumbers(old.ranks ?? new Set()) === writeNumbers(ranks ?? new Set())) return others;
  return [...others, { name, ranks }].slice(-MOST);
}

/** `ncclKernel~0-3!gemm~`: names are escaped, so that they may hold any character. */
export function writeNameTracks(tracks: readonly NameTrack[]): string {
  return tracks.filter(({ name }) => name.length <= LONGEST).map(({ name, ranks }) => `${escaped(name)}~${ranks ? writeNumbers(ranks) : ""}`).join("!");
}

export function readNameTracks(all: string): NameTrack[] {
  const found: NameTrack[] = [];
  for (const part of all.split("!").slice(0, MOST)) {
    const [text = "", ranks = ""] = part.split("~");
    const name = unescaped(text);
    if (name !== "" && name.length <= LONGEST && !found.some((other) => other.name === name)) found.push({ name, ranks: ranks === "" ? null : readNumbers(ranks) });
  }
  return found;
}

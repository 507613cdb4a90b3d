/** The timeline of a report: its blocks, unpacked per rank on first use, for everything that answers from them. */
import type { Blocks } from "./blocks.ts";
import { Collectives } from "./collectives.ts";
import { RankEvents, type Codes, type NamedLane, type RankPlan } from "./rank_events.ts";

/** Lanes of names that are kept. */
const NAMED_KEPT = 2048;

/** The block `timeline`: layout, names and codes of all ranks. */
export interface Head {
  readonly format: number;
  readonly layout: {
    readonly base_bin_ns: number;
    readonly factor: number;
    readonly levels: number;
    readonly categories: readonly { readonly name: string }[];
    readonly ranks: readonly { readonly rank: number; readonly tracks: readonly [number, number]; readonly steps: readonly (readonly [number | null, number, number])[] }[];
    readonly tracks: readonly { readonly rank: number; readonly kind: string; readonly lanes: readonly [number, number] }[];
    readonly lanes: { readonly track: readonly number[]; readonly events: readonly number[]; readonly first_ns: readonly number[] };
  };
  readonly names: readonly string[];
  readonly codes: { readonly name: readonly number[]; readonly category: readonly number[]; readonly table: readonly number[] };
  /** Collectives' kind, group and bytes. */
  readonly kinds: readonly (readonly [string | null, string | null, number | null])[];
  /** How many ranks' collectives were compared. */
  readonly compared: number;
  readonly heat: unknown;
  readonly left_out: readonly string[];
  /** For how many of each rank's longest events the report has details. */
  readonly detailed: number;
}

/** The fields of an event in a report besides its times. */
export interface Details { readonly args?: Record<string, unknown>; readonly shapes?: string; readonly stack?: string[] }

export class EmbeddedRun {
  readonly head: Head;
  readonly codes: Codes;
  readonly blocks: Blocks;
  readonly plans: readonly RankPlan[];
  readonly collectives: Collectives;
  readonly #ranks = new Map<number, Promise<RankEvents>>();
  readonly #named = new Map<string, NamedLane>();
  readonly #details = new Map<number, Promise<Record<string, Details>>>();

  constructor(head: Head, blocks: Blocks) {
    this.head = head;
    this.blocks = blocks;
    this.codes = { name: Uint32Array.from(head.codes.name), category: Uint8Array.from(head.codes.category), table: Uint8Array.from(head.codes.table) };
    this.plans = head.layout.ranks.flatMap(({ rank, tracks: [first, count] }) => (count === 0 ? [] : [planOf(head, rank, first, count)]));
    this.collectives = new Collectives(this.plans.map(({ rank }) => rank), blocks);
  }

  /** A rank's events, unpacked once. */
  rank(plan: RankPlan): Promise<RankEvents> {
    let read = this.#ranks.get(plan.rank);
    if (!read) {
      read = RankEvents.read(plan, this.codes, this.blocks);
      this.#ranks.set(plan.rank, read);
    }
    return read;
  }

  /** The details of a rank's longest events, by event number. */
  details(rank: number): Promise<Record<string, Details>> {
    let read = this.#details.get(rank);
    if (!read) {
      const block = `details-${rank}`;
      read = this.blocks.has(block) ? this.blocks.json<Record<string, Details>>(block) : Promise.resolve({});
      this.#details.set(rank, read);
    }
    return read;
  }

  /** A rank's events with a name as a lane; the last few are kept. */
  async named(plan: RankPlan, name: number): Promise<NamedLane> {
    const key = `${plan.rank}.${name}`;
    let lane = this.#named.get(key);
    if (!lane) {
      if (this.#named.size >= NAMED_KEPT) this.#named.clear();
      lane = (await this.rank(plan)).named(name);
      this.#named.set(key, lane);
    }
    return lane;
  }

  planOfRank(rank: number): RankPlan | null {
    return this.plans.find((plan) => plan.rank === rank) ?? null;
  }

  planOfLane(lane: number): RankPlan | null {
    return this.plans.find(({ firstLane, kinds }) => lane >= firstLane && lane < firstLane + kinds.length) ?? null;
  }

  name(code: number): string {
    return this.head.names[this.codes.name[code] ?? 0] ?? "";
  }
}

function planOf(head: Head, rank: number, first: number, count: number): RankPlan {
  const tracks = head.layout.tracks.slice(first, first + count);
  const firstLane = tracks[0]?.lanes[0] ?? 0;
  const stop = firstLane + tracks.reduce((sum, { lanes }) => sum + lanes[1], 0);
  const { lanes } = head.layout;
  return {
    rank, firstLane, kinds: tracks.flatMap(({ kind, lanes: [, size] }) => Array.from({ length: size }, () => kind)),
    events: lanes.events.slice(firstLane, stop), track: lanes.track.slice(firstLane, stop), firstTimes: lanes.first_ns.slice(firstLane, stop),
  };
}

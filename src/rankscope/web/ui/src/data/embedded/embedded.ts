/** A run inside a report: answers what a server would be asked, from the blocks in the page, unpacking a rank when it is looked at. */
import { ApiError, type Api, type Params, type RunChoice, type ServerState } from "../api.ts";
import { ColumnFile } from "../column_file.ts";
import type { Payload } from "../payload.ts";
import type { Source } from "../source.ts";
import type { Blocks } from "./blocks.ts";
import { Collectives } from "./collectives.ts";
import { countersOf } from "./counters.ts";
import { eventOf, type Told } from "./event.ts";
import { rangeOf } from "./range.ts";
import { RankEvents, type Codes, type RankPlan } from "./rank_events.ts";
import { Search } from "./search.ts";
import { eventsOf, tilesOf } from "./tiles.ts";

const FORMAT = 1;

/** What the report says of its timeline as a whole. */
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
  /** Ranks whose collectives were compared. */
  readonly compared: number;
  readonly heat: unknown;
  readonly left_out: readonly string[];
  /** Of how many events of each rank the arguments are there. */
  readonly told: number;
}

export class EmbeddedApi implements Api {
  readonly run = null;
  readonly head: Head;
  readonly codes: Codes;
  readonly blocks: Blocks;
  readonly plans: readonly RankPlan[];
  readonly collectives: Collectives;
  readonly #ranks = new Map<number, Promise<RankEvents>>();
  readonly #told = new Map<number, Promise<Record<string, Told>>>();
  readonly #search: Search;

  constructor(head: Head, blocks: Blocks) {
    this.head = head;
    this.blocks = blocks;
    this.codes = { name: Uint32Array.from(head.codes.name), category: Uint8Array.from(head.codes.category), table: Uint8Array.from(head.codes.table) };
    this.plans = head.layout.ranks.flatMap(({ rank, tracks: [first, count] }) => (count === 0 ? [] : [planOf(head, rank, first, count)]));
    this.collectives = new Collectives(this.plans.map(({ rank }) => rank), blocks);
    this.#search = new Search(this);
  }

  async json<T>(name: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
    const answer = await this.#json(name, params);
    signal?.throwIfAborted();
    return answer as T;
  }

  async columns(name: string, params: Params = {}, signal?: AbortSignal): Promise<ColumnFile> {
    const answer = await this.#columns(name, params, signal);
    signal?.throwIfAborted();
    return answer;
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

  /** What is told of a rank's longest events, by number. */
  told(rank: number): Promise<Record<string, Told>> {
    let read = this.#told.get(rank);
    if (!read) {
      read = this.blocks.has(`told-${rank}`) ? this.blocks.json<Record<string, Told>>(`told-${rank}`) : Promise.resolve({});
      this.#told.set(rank, read);
    }
    return read;
  }

  planOfLane(lane: number): RankPlan | null {
    return this.plans.find(({ firstLane, kinds }) => lane >= firstLane && lane < firstLane + kinds.length) ?? null;
  }

  name(code: number): string {
    return this.head.names[this.codes.name[code] ?? 0] ?? "";
  }

  async #json(name: string, params: Params): Promise<unknown> {
    const { head } = this;
    if (name === "timeline") return head.layout;
    if (name === "names") return { names: head.names.slice(number(params, "from", 0)), next: null };
    if (name === "heat" && head.heat !== null) return head.heat;
    if (name === "event") {
      const event = await eventOf(this, number(params, "lane", -1), number(params, "row", -1));
      if (event) return event;
      throw new ApiError(404, "There is no such event.", "");
    }
    if (name === "search") {
      const forward = params["direction"] !== "previous";
      const after = number(params, "after", forward ? -Infinity : Infinity);
      return this.#search.step(String(params["q"] ?? ""), [after, number(params, "lane", -1), number(params, "row", -1)], forward, params["rank"] === undefined ? null : number(params, "rank", -1));
    }
    throw new ApiError(404, `This report holds no ${name}.`, "`rankscope serve DIR` shows all of a run.");
  }

  async #columns(name: string, params: Params, signal?: AbortSignal): Promise<ColumnFile> {
    const [from, to] = [number(params, "from", 0), number(params, "to", 0)];
    if (name === "range") return rangeOf(this, from, to, params["ranks"] === undefined ? null : new Set(listed(String(params["ranks"]))));
    if (name === "counters") return countersOf(await this.blocks.numbers(`counters-${number(params, "rank", -1)}`), from, to, number(params, "points", 2000));
    if (name !== "tiles" && name !== "events") throw new ApiError(404, `This report holds no ${name}.`, "`rankscope serve DIR` shows all of a run.");
    const lanes = [];
    for (const id of listed(String(params["lanes"] ?? ""))) {
      const plan = this.planOfLane(id);
      lanes.push({ id, lane: plan ? (await this.rank(plan)).lanes[id - plan.firstLane] ?? null : null });
      signal?.throwIfAborted();
    }
    if (name === "events") return eventsOf(lanes, this.codes, from, to, number(params, "limit", 50_000));
    const { base_bin_ns, factor } = this.head.layout;
    const level = number(params, "level", 0);
    return tilesOf(lanes, this.codes, level, base_bin_ns * factor ** level, number(params, "first", 0), number(params, "bins", 1));
  }
}

export class Embedded implements Source {
  readonly api: Api;
  readonly payload: Payload;
  readonly live = false;
  readonly working = false;
  readonly generation = 0;
  readonly runs: readonly RunChoice[] = [];
  readonly shown = "";
  readonly place = "";
  readonly study = false;
  readonly leftOut: readonly string[];
  readonly state: ServerState;

  private constructor(payload: Payload, head: Head, blocks: Blocks) {
    const lost = head.format === FORMAT ? [] : ["The timeline is left out: it comes from another version of rankscope."];
    this.payload = lost.length > 0 ? { ...payload, problems: [...payload.problems, ...lost] } : payload;
    this.api = new EmbeddedApi(head, blocks);
    this.leftOut = head.left_out.map(String);
    const parts = [...(lost.length === 0 ? ["timeline"] : []), ...(head.heat === null ? [] : ["heat"])];
    this.state = { phase: "ready", what: "", done: 0, total: 0, ready: [...payload.analyses.keys(), ...parts], error: null, version: 1 };
  }

  static async open(payload: Payload, blocks: Blocks): Promise<Embedded> {
    return new Embedded(payload, await blocks.json<Head>("timeline"), blocks);
  }

  isReady(what: string): boolean {
    return this.state.ready.includes(what);
  }

  table(): Promise<void> {
    return Promise.resolve();
  }

  onChange(): () => void {
    return () => undefined;
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

function number(params: Params, name: string, otherwise: number): number {
  const value = params[name];
  return value === undefined || value === null ? otherwise : Number(value);
}

/** `0-15,40` as numbers. */
export function listed(text: string): number[] {
  return text.split(",").filter((part) => part !== "").flatMap((part) => {
    const [low, high] = part.split("-").map(Number);
    return Array.from({ length: (high ?? low ?? 0) - (low ?? 0) + 1 }, (_, i) => (low ?? 0) + i);
  });
}

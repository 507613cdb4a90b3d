/** A run inside a report: the server's API (PROTOCOL.md), answered from the blocks in the page. */
import { ApiError, type Api, type Params, type RunChoice, type ServerState } from "../api.ts";
import { ColumnFile } from "../column_file.ts";
import type { Payload } from "../payload.ts";
import type { Source } from "../source.ts";
import type { Blocks } from "./blocks.ts";
import { callsOf } from "./calls.ts";
import { countersOf } from "./counters.ts";
import { eventOf } from "./event.ts";
import type { Lane } from "./rank_events.ts";
import { pathOf } from "./path.ts";
import { rangeOf } from "./range.ts";
import { EmbeddedRun, type Head } from "./run.ts";
import { embeddedAnswer, optionsIn, type EmbeddedAnswers } from "../whatif.ts";
import { Search, type Query } from "./search.ts";
import { eventsOf, tilesOf } from "./tiles.ts";

const FORMAT = 1;

export class EmbeddedApi implements Api {
  readonly run = null;
  readonly #data: EmbeddedRun;
  readonly #search: Search;

  constructor(head: Head, blocks: Blocks) {
    this.#data = new EmbeddedRun(head, blocks);
    this.#search = new Search(this.#data);
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

  async #json(name: string, params: Params): Promise<unknown> {
    const { head } = this.#data;
    if (name === "timeline") return head.layout;
    if (name === "names") return { names: head.names.slice(number(params, "from", 0)), next: null };
    if (name === "heat" && head.heat !== null) return head.heat;
    if (name === "event") {
      const event = await eventOf(this.#data, number(params, "lane", -1), number(params, "row", -1));
      if (event) return event;
      throw new ApiError(404, "No such event.", "");
    }
    if (name === "search") return this.#found(params);
    if (name === "whatif") return this.#whatif(String(params["with"] ?? ""));
    if (name === "named/event") return this.#namedEvent(params);
    throw new ApiError(404, `This report contains no ${name}.`, "`rankscope serve DIR` shows the complete run.");
  }

  async #whatif(text: string): Promise<unknown> {
    const { blocks } = this.#data;
    if (!blocks.has("whatif")) throw new ApiError(404, "This report contains no replay of a step.", "`rankscope whatif RUN` says why, or what a step would take.");
    const answer = embeddedAnswer(await blocks.json<EmbeddedAnswers>("whatif"), optionsIn(text));
    if (answer) return answer;
    throw new ApiError(404, "A report answers single scenarios and the waterfall, no other combination.", "`rankscope serve RUN` answers all of them on this page, and so does the command below.");
  }

  async #found(params: Params): Promise<unknown> {
    const forward = params["direction"] !== "previous";
    const [lane, row, rank] = [number(params, "lane", -1), number(params, "row", -1), number(params, "rank", -1)];
    const only = rank < 0 ? null : rank;
    const name = params["match"] === "name" ? await this.#search.nameAt(lane, row) : null;
    if (params["match"] === "name" && name === null) throw new ApiError(404, "No such event.", "");
    const query: Query = name === null ? { text: String(params["q"] ?? ""), match: params["match"] === "regex" ? "regex" : "text" } : { text: name, match: "name" };
    const found = await this.#search.step(query, [number(params, "after", forward ? -Infinity : Infinity), lane, row], forward, only);
    const count = number(params, "count", 0);
    if (count === 0) return found;
    const first = number(params, "first", Math.max(0, found.index - Math.floor(count / 2)));
    return { ...found, first, listed: await this.#search.part(query, first, count, only) };
  }

  async #namedEvent(params: Params): Promise<unknown> {
    const plan = this.#data.planOfRank(number(params, "rank", -1));
    const row = number(params, "row", -1);
    const event = plan && (await this.#data.named(plan, number(params, "name", -1))).number[row];
    if (!plan || event === undefined || event === null) throw new ApiError(404, "No such event.", "");
    const place = (await this.#data.rank(plan)).place(event);
    return eventOf(this.#data, plan.firstLane + place.lane, place.row);
  }

  /** The lanes that a request names: of the run, or those of a name. */
  async #lanes(params: Params, signal?: AbortSignal): Promise<{ id: number; lane: Lane | null }[]> {
    const lanes = [];
    if (params["name"] !== undefined) {
      const ranks = this.#data.plans.map(({ rank }) => rank).sort((a, b) => a - b);
      for (const rank of listed(String(params["ranks"] ?? ""))) {
        const plan = this.#data.planOfRank(rank);
        lanes.push({ id: ranks.indexOf(rank), lane: plan ? await this.#data.named(plan, number(params, "name", -1)) : null });
        signal?.throwIfAborted();
      }
      return lanes;
    }
    for (const id of listed(String(params["lanes"] ?? ""))) {
      const plan = this.#data.planOfLane(id);
      lanes.push({ id, lane: plan ? (await this.#data.rank(plan)).lanes[id - plan.firstLane] ?? null : null });
      signal?.throwIfAborted();
    }
    return lanes;
  }

  async #columns(name: string, params: Params, signal?: AbortSignal): Promise<ColumnFile> {
    const [from, to] = [number(params, "from", 0), number(params, "to", 0)];
    const ranks = params["ranks"] === undefined ? null : new Set(listed(String(params["ranks"])));
    if (name === "range") return rangeOf(this.#data, from, to, ranks);
    if (name === "calls") return callsOf(this.#data, from, to, String(params["by"] ?? "operators"), ranks);
    if (name === "counters") return countersOf(await this.#data.blocks.numbers(`counters-${number(params, "rank", -1)}`), from, to, number(params, "points", 2000));
    if (name === "path") return pathOf(this.#data, number(params, "at", 0), params["rank"] === undefined ? null : number(params, "rank", -1));
    if (!/^(?:named\/)?(?:tiles|events)$/.test(name)) throw new ApiError(404, `This report contains no ${name}.`, "`rankscope serve DIR` shows the complete run.");
    const lanes = await this.#lanes(params, signal);
    if (name.endsWith("events")) return eventsOf(lanes, this.#data.codes, from, to, number(params, "limit", 50_000));
    const { base_bin_ns, factor } = this.#data.head.layout;
    const level = number(params, "level", 0);
    return tilesOf(lanes, this.#data.codes, level, base_bin_ns * factor ** level, number(params, "first", 0), number(params, "bins", 1));
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
    const lost = head.format === FORMAT ? [] : ["The timeline is not shown: it was written by another version of rankscope."];
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

/** Finding events by name, over all ranks, in the order of time (`api/search`). */
import { expression } from "../../format/pattern.ts";
import { lowerBound } from "../../timeline/tiles.ts";
import { ApiError } from "../api.ts";
import type { EmbeddedRun } from "./run.ts";

interface Hits { readonly start: Float64Array; readonly lane: Float64Array; readonly row: Float64Array }
interface Hit { readonly lane: number; readonly row: number; readonly start_ns: number; readonly end_ns: number; readonly name: string }
interface Found { readonly hit: Hit | null; readonly hits: number; readonly index: number }

/** Names that contain the text, match it as a regular expression, or equal it. */
export interface Query { readonly text: string; readonly match: "text" | "regex" | "name" }

const KEPT = 4;

export class Search {
  readonly #run: EmbeddedRun;
  readonly #kept = new Map<string, Promise<Hits>>();

  constructor(run: EmbeddedRun) {
    this.#run = run;
  }

  /** The hit after (or before) a place, which is its start, lane and row; a lane of −1 stands before all that start there. */
  async step(query: Query, at: readonly [number, number, number], forward: boolean, rank: number | null): Promise<Found> {
    const { start, lane, row } = await this.#hits(query, rank);
    const before = (i: number): boolean => start[i]! < at[0] || (start[i] === at[0] && (lane[i]! < at[1] || (lane[i] === at[1] && row[i]! < at[2])));
    let index = lowerBound(start, at[0], 0, start.length);
    while (index < start.length && before(index)) index++;
    if (!forward) index -= 1;
    else if (index < start.length && start[index] === at[0] && lane[index] === at[1] && row[index] === at[2]) index++;
    if (index < 0 || index >= start.length) return { hit: null, hits: start.length, index: -1 };
    return { hit: await this.#hit({ start, lane, row }, index), hits: start.length, index };
  }

  /** The hits from number `first` on, at most `count`. */
  async part(query: Query, first: number, count: number, rank: number | null): Promise<Hit[]> {
    const hits = await this.#hits(query, rank);
    const last = Math.min(hits.start.length, first + count);
    return Promise.all(Array.from({ length: Math.max(0, last - first) }, (_, i) => this.#hit(hits, first + i)));
  }

  /** The name of an event; null where there is none. */
  async nameAt(lane: number, row: number): Promise<string | null> {
    const plan = this.#run.planOfLane(lane);
    const code = plan && (await this.#run.rank(plan)).lanes[lane - plan.firstLane]?.code[row];
    return code === undefined || code === null ? null : this.#run.name(code);
  }

  async #hit({ lane, row }: Hits, index: number): Promise<Hit> {
    const plan = this.#run.planOfLane(lane[index]!)!;
    const events = (await this.#run.rank(plan)).lanes[lane[index]! - plan.firstLane]!;
    const place = row[index]!;
    return { lane: lane[index]!, row: place, start_ns: events.start[place]!, end_ns: events.end[place]!, name: this.#run.name(events.code[place]!) };
  }

  #hits(query: Query, rank: number | null): Promise<Hits> {
    const key = `${rank ?? ""}:${query.match}:${query.text}`;
    const kept = this.#kept.get(key) ?? this.#find(query, rank);
    this.#kept.delete(key);
    this.#kept.set(key, kept);
    for (const old of [...this.#kept.keys()].slice(0, -KEPT)) this.#kept.delete(old);
    return kept;
  }

  async #find(query: Query, rank: number | null): Promise<Hits> {
    const names = this.#run.head.names.map(matcher(query));
    const matching = Uint8Array.from(this.#run.codes.name, (name) => Number(names[name] ?? false));
    const [starts, lanes, rows]: [number[], number[], number[]] = [[], [], []];
    for (const plan of this.#run.plans) {
      if (rank !== null && plan.rank !== rank) continue;
      (await this.#run.rank(plan)).lanes.forEach((lane, index) => {
        if (plan.kinds[index] === "rank") return; // it repeats others
        for (let i = 0; i < lane.code.length; i++) {
          if (matching[lane.code[i]!] === 0) continue;
          starts.push(lane.start[i]!);
          lanes.push(plan.firstLane + index);
          rows.push(i);
        }
      });
    }
    const order = Uint32Array.from(starts, (_, i) => i).sort((a, b) => starts[a]! - starts[b]! || lanes[a]! - lanes[b]! || rows[a]! - rows[b]!);
    return { start: Float64Array.from(order, (i) => starts[i]!), lane: Float64Array.from(order, (i) => lanes[i]!), row: Float64Array.from(order, (i) => rows[i]!) };
  }
}

function matcher({ text, match }: Query): (name: string) => boolean {
  if (match === "name") return (name) => name === text;
  const wanted = folded(text);
  if (match === "text") return (name) => folded(name).includes(wanted);
  const pattern = expression(text);
  if (!pattern) throw new ApiError(400, "This is not a valid regular expression.", "Try one such as gemm|attn.");
  return (name) => pattern.test(name);
}

/** Case aside, as Unicode folds it: ß and SS are the same. */
function folded(text: string): string {
  return text.toUpperCase().toLowerCase();
}

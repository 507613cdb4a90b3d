/** Finding events by name, over all ranks, in the order of time (`api/search`). */
import { lowerBound } from "../../timeline/tiles.ts";
import type { EmbeddedRun } from "./run.ts";

interface Hits { readonly start: Float64Array; readonly lane: Float64Array; readonly row: Float64Array }
interface Found { readonly hit: { lane: number; row: number; start_ns: number; end_ns: number; name: string } | null; readonly hits: number; readonly index: number }

const KEPT = 4;

export class Search {
  readonly #run: EmbeddedRun;
  readonly #kept = new Map<string, Promise<Hits>>();

  constructor(run: EmbeddedRun) {
    this.#run = run;
  }

  /** The hit after (or before) a place, which is its start, lane and row; a lane of −1 stands before all that start there. */
  async step(text: string, at: readonly [number, number, number], forward: boolean, rank: number | null): Promise<Found> {
    const { start, lane, row } = await this.#hits(text, rank);
    const before = (i: number): boolean => start[i]! < at[0] || (start[i] === at[0] && (lane[i]! < at[1] || (lane[i] === at[1] && row[i]! < at[2])));
    let index = lowerBound(start, at[0], 0, start.length);
    while (index < start.length && before(index)) index++;
    if (!forward) index -= 1;
    else if (index < start.length && start[index] === at[0] && lane[index] === at[1] && row[index] === at[2]) index++;
    if (index < 0 || index >= start.length) return { hit: null, hits: start.length, index: -1 };
    const plan = this.#run.planOfLane(lane[index]!)!;
    const events = (await this.#run.rank(plan)).lanes[lane[index]! - plan.firstLane]!;
    const place = row[index]!;
    return { hit: { lane: lane[index]!, row: place, start_ns: events.start[place]!, end_ns: events.end[place]!, name: this.#run.name(events.code[place]!) }, hits: start.length, index };
  }

  #hits(text: string, rank: number | null): Promise<Hits> {
    const key = `${rank ?? ""}:${text}`;
    const kept = this.#kept.get(key) ?? this.#find(text, rank);
    this.#kept.delete(key);
    this.#kept.set(key, kept);
    for (const old of [...this.#kept.keys()].slice(0, -KEPT)) this.#kept.delete(old);
    return kept;
  }

  async #find(text: string, rank: number | null): Promise<Hits> {
    const wanted = folded(text);
    const names = this.#run.head.names.map((name) => folded(name).includes(wanted));
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

/** Case aside, as Unicode folds it: ß and SS are the same. */
function folded(text: string): string {
  return text.toUpperCase().toLowerCase();
}

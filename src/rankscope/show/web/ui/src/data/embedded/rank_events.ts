/** One rank's events, unpacked: lane by lane, in the numbering that holds across what the report left out. */
import { lowerBound } from "../../timeline/tiles.ts";
import { type Blocks, type Numbers } from "./blocks.ts";
import { Growing } from "./growing.ts";

/** What the codes of events mean. */
export interface Codes {
  readonly name: Uint32Array;
  readonly category: Uint8Array;
  readonly table: Uint8Array;
}

export const [DEVICE_TABLE, OPERATOR_TABLE, CALL_TABLE, ANNOTATION_TABLE] = [0, 1, 2, 3];
export const STAGES = ["device", "host", "python"] as const;
const STAGE_OF: Readonly<Record<string, number>> = { stream: 0, thread: 1, annotation: 1, python: 2 };

/** A lane: its events by start. */
export interface Lane {
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly code: Uint32Array;
  /** Of each event; null where its code tells. */
  readonly category: Uint8Array | null;
  /** The number of its first event in the rank; of the rank's own lane, which repeats others, the numbers of those. */
  readonly number: number | Uint32Array;
  /** Of a lane in which events overlap: the latest end so far, and the union of each category by start. */
  readonly overlaps: { readonly reach: Float64Array; readonly merged: Merged } | null;
}

/** The events of a rank with one name, and their numbers. */
export interface NamedLane extends Lane { readonly number: Uint32Array }

export interface Merged { readonly start: Float64Array; readonly end: Float64Array; readonly category: Uint8Array }

/** What a rank has: its number, its lanes in the report's numbering, and the kind of track of each. */
export interface RankPlan {
  readonly rank: number;
  readonly firstLane: number;
  readonly kinds: readonly string[];
  readonly events: readonly number[];
  readonly track: readonly number[];
  /** When the first event of each begins. */
  readonly firstTimes: readonly number[];
}

export class RankEvents {
  readonly plan: RankPlan;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly code: Uint32Array;
  /** Of each event the event that launched it, one more; 0 for none. */
  readonly launch: Uint32Array;
  /** Operators that are not simply the one around: by event. */
  readonly operator: ReadonlyMap<number, number>;
  /** By a backward operator its forward one, and by a forward operator its backward. */
  readonly forward: ReadonlyMap<number, number>;
  readonly backward: ReadonlyMap<number, number>;
  readonly lanes: readonly Lane[];
  readonly #bounds: Float64Array;
  readonly #laneOf: Uint32Array;
  readonly #codes: Codes;
  #byStart: Uint32Array | null = null;

  private constructor(plan: RankPlan, codes: Codes, parts: readonly Numbers[]) {
    this.plan = plan;
    this.#codes = codes;
    // The lanes in the order in which their events are numbered: by stage.
    const ordered = STAGES.flatMap((_, stage) => plan.kinds.flatMap((kind, lane) => (STAGE_OF[kind] === stage ? [lane] : [])));
    const total = ordered.reduce((sum, lane) => sum + (plan.events[lane] ?? 0), 0);
    this.start = new Float64Array(total);
    this.end = new Float64Array(total);
    this.code = new Uint32Array(total);
    this.#bounds = new Float64Array(ordered.length);
    this.#laneOf = Uint32Array.from(ordered);
    const from = new Map<number, number>();
    let at = 0;
    for (const [place, lane] of ordered.entries()) {
      this.#bounds[place] = at;
      from.set(lane, at);
      at += plan.events[lane] ?? 0;
    }
    this.#unpack(parts, plan, ordered, from);
    this.launch = new Uint32Array(total);
    const links = parts[1];
    const launches = links?.steps("launch");
    if (launches) for (let i = 0, next = 0; i < total && next < launches.length; i++) if (codes.table[this.code[i]!] === DEVICE_TABLE) this.launch[i] = launches[next++]!;
    const operator = new Map<number, number>();
    const [of, is] = [links?.steps("operator_of"), links?.of("operator")];
    of?.forEach((event, i) => operator.set(event, is![i]! - 1));
    this.operator = operator;
    const pairs = (side: "forward" | "backward"): Map<number, number> => {
      const other = links?.steps(side);
      return new Map(Array.from(links?.steps(`${side}_of`) ?? [], (event, i) => [event, other![i]!]));
    };
    [this.forward, this.backward] = [pairs("forward"), pairs("backward")];
    this.lanes = plan.kinds.map((kind, lane): Lane => {
      if (kind === "rank") return this.#whole(parts);
      const [low, high] = [from.get(lane) ?? 0, (from.get(lane) ?? 0) + (plan.events[lane] ?? 0)];
      return { start: this.start.subarray(low, high), end: this.end.subarray(low, high), code: this.code.subarray(low, high), category: null, number: low, overlaps: null };
    });
  }

  static async read(plan: RankPlan, codes: Codes, blocks: Blocks): Promise<RankEvents> {
    const parts: Numbers[] = [];
    for (const stage of STAGES) parts.push(await blocks.numbers(`${stage}-${plan.rank}`));
    return new RankEvents(plan, codes, parts);
  }

  get length(): number {
    return this.start.length;
  }

  /** The numbers of the device and host events, by start. */
  get byStart(): Uint32Array {
    const { kinds, events } = this.plan;
    const last = kinds.reduce((sum, kind, lane) => sum + (STAGE_OF[kind] === 0 || STAGE_OF[kind] === 1 ? events[lane] ?? 0 : 0), 0);
    return this.#byStart ??= Uint32Array.from({ length: last }, (_, i) => i).sort((a, b) => this.start[a]! - this.start[b]! || a - b);
  }

  /** Where an event is: its lane here, and its row in that. */
  place(event: number): { lane: number; row: number } {
    let low = 0;
    let high = this.#bounds.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#bounds[middle]! <= event) low = middle + 1;
      else high = middle;
    }
    return { lane: this.#laneOf[low - 1] ?? 0, row: event - (this.#bounds[low - 1] ?? 0) };
  }

  /** The number of the event that a row of a lane is, or repeats. */
  numberAt(lane: number, row: number): number {
    const { number } = this.lanes[lane]!;
    return typeof number === "number" ? number + row : number[row]!;
  }

  /** The device events that the calls within a host event launched, by start. */
  launchedBy(event: number): number[] {
    const { lane } = this.place(event);
    const { kinds, track } = this.plan;
    const table = this.#codes.table[this.code[event]!];
    if (kinds[lane] !== "thread" || (table !== OPERATOR_TABLE && table !== CALL_TABLE && table !== ANNOTATION_TABLE)) return [];
    const [start, end] = [this.start[event]!, this.end[event]!];
    const found: number[] = [];
    for (let other = 0; other < this.length; other++) {
      const call = this.launch[other]! - 1;
      if (call < 0 || this.start[call]! < start || this.end[call]! > end || track[this.place(call).lane] !== track[lane]) continue;
      found.push(other);
    }
    return found.sort((a, b) => this.start[a]! - this.start[b]! || a - b);
  }

  /** The events with a name as a lane, in which they may overlap: by start, then end. */
  named(name: number): NamedLane {
    const found = new Growing();
    for (let event = 0; event < this.length; event++) if (this.#codes.name[this.code[event]!] === name) found.push(event);
    const lanes = new Map(Array.from(found.values(), (event) => [event, this.place(event).lane]));
    const number = Uint32Array.from([...found.values()].sort((a, b) => this.start[a]! - this.start[b]! || this.end[a]! - this.end[b]! || lanes.get(a)! - lanes.get(b)! || a - b));
    const start = Float64Array.from(number, (event) => this.start[event]!);
    const end = Float64Array.from(number, (event) => this.end[event]!);
    const code = Uint32Array.from(number, (event) => this.code[event]!);
    const category = Uint8Array.from(code, (each) => this.#codes.category[each]!);
    return { start, end, code, category, number, overlaps: overlapsOf(start, end, category) };
  }

  /** The innermost operator around an event of a thread: in the lanes above its own, the nearest first; −1 for none. */
  around(event: number): number {
    const { lane } = this.place(event);
    const { track } = this.plan;
    for (let above = lane - 1; above > 0 && track[above] === track[lane]; above--) {
      const { start, end, code } = this.lanes[above]!;
      let at = lowerBound(start, this.start[event]!, 0, start.length);
      while (at < start.length && start[at] === this.start[event]) at++;
      at -= 1;
      if (at >= 0 && end[at]! >= this.end[event]! && this.#codes.table[code[at]!] === OPERATOR_TABLE) return this.numberAt(above, at);
    }
    return -1;
  }

  #unpack(parts: readonly Numbers[], plan: RankPlan, ordered: readonly number[], from: ReadonlyMap<number, number>): void {
    STAGES.forEach((_, stage) => {
      const part = parts[stage]!;
      const unit = Number(part.meta["unit"] ?? 1);
      const [gaps, durations, codes] = [part.of("gap"), part.of("duration"), part.of("code")];
      let next = 0;
      for (const lane of ordered.filter((each) => STAGE_OF[plan.kinds[each] ?? ""] === stage)) {
        let clock = plan.firstTimes[lane] ?? 0;
        for (let at = from.get(lane)!, stop = at + (plan.events[lane] ?? 0); at < stop; at++, next++) {
          const start = clock + gaps[next]! * unit;
          this.start[at] = start;
          this.end[at] = clock = start + durations[next]! * unit;
          this.code[at] = codes[next]!;
        }
      }
    });
  }

  #whole(parts: readonly Numbers[]): Lane {
    const part = parts.find((each) => each.meta["whole"] !== undefined);
    const length = Number(part?.meta["whole"] ?? 0);
    const number = this.#repeated(part, length);
    const [start, end, code] = [new Float64Array(length), new Float64Array(length), new Uint32Array(length)];
    number.forEach((event, row) => {
      start[row] = this.start[event]!;
      end[row] = this.end[event]!;
      code[row] = this.code[event]!;
    });
    const category = part?.has("whole_category") ? Uint8Array.from(part.of("whole_category")) : code.length > 0 ? Uint8Array.from(code, (each) => this.#codes.category[each]!) : new Uint8Array(0);
    return { start, end, code, category, number, overlaps: overlapsOf(start, end, category) };
  }

  #repeated(part: Numbers | undefined, length: number): Uint32Array {
    if (!part) return new Uint32Array(0);
    if (part.has("whole_order")) return Uint32Array.from(part.steps("whole_order"));
    const found = new Uint32Array(length);
    if (part.has("whole")) {
      let next = 0;
      part.of("whole").forEach((mark, event) => { if (mark === 1) found[next++] = event; });
    } else for (let event = 0; event < length; event++) found[event] = event;
    return found.sort((a, b) => this.start[a]! - this.start[b]! || this.end[a]! - this.end[b]! || a - b);
  }
}

/** Of events by start. */
function overlapsOf(start: Float64Array, end: Float64Array, category: Uint8Array): Lane["overlaps"] {
  let latest = -Infinity;
  return { reach: end.map((each) => latest = Math.max(latest, each)), merged: mergedOf(start, end, category) };
}

/** The union of each category, by start, then category. */
function mergedOf(start: Float64Array, end: Float64Array, category: Uint8Array): Merged {
  const open = new Map<number, { start: number; end: number }>();
  const found: { start: number; end: number; category: number }[] = [];
  for (let i = 0; i < start.length; i++) {
    const kind = category[i]!;
    const now = open.get(kind);
    if (end[i]! <= start[i]!) continue;
    if (now && start[i]! <= now.end) now.end = Math.max(now.end, end[i]!);
    else {
      const next = { start: start[i]!, end: end[i]!, category: kind };
      open.set(kind, next);
      found.push(next);
    }
  }
  found.sort((a, b) => a.start - b.start || a.category - b.category);
  return { start: Float64Array.from(found, (each) => each.start), end: Float64Array.from(found, (each) => each.end), category: Uint8Array.from(found, (each) => each.category) };
}

/** Rows of a lane that touch `[from, to)`; one without duration touches where it is. */
export function touching(lane: Lane, from: number, to: number): { readonly before: readonly number[]; readonly low: number; readonly high: number } {
  const { start, end, overlaps } = lane;
  let low = lowerBound(start, from, 0, start.length);
  const high = lowerBound(start, to, low, start.length);
  if (!overlaps) {
    // Nothing overlaps: of what starts before, only the last can reach into the window.
    if (low > 0 && end[low - 1]! > from) low -= 1;
    return { before: [], low, high };
  }
  const before = new Growing();
  let first = 0;
  for (let last = low; first < last; ) {
    const middle = (first + last) >> 1;
    if (overlaps.reach[middle]! <= from) first = middle + 1;
    else last = middle;
  }
  for (let row = first; row < low; row++) if (end[row]! > from) before.push(row);
  return { before: before.values(), low, high };
}

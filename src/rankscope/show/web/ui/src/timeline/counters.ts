/** Memory and queue depth of the ranks that are open: the whole run coarsely, and the visible window finely. */
import { isAbort, type Api } from "../data/api.ts";
import type { Window } from "./window.ts";

export interface CounterMeta {
  readonly name: string;
  readonly unit: string;
  readonly low: number;
  readonly high: number;
}

export interface CounterPart {
  readonly window: Window;
  readonly meta: readonly CounterMeta[];
  readonly counter: Uint32Array;
  readonly at: Float64Array;
  readonly low: Float64Array;
  readonly high: Float64Array;
}

interface Held { coarse: CounterPart | null; fine: CounterPart | null; asked: string; timer: number; stop: AbortController | null }

const POINTS = 800;
const PAUSE_MS = 150;

export class Counters {
  readonly #api: Api;
  readonly #span: number;
  readonly #came: () => void;
  readonly #failed: (error: unknown) => void;
  readonly #ranks = new Map<number, Held>();

  constructor(api: Api, span: number, came: () => void, failed: (error: unknown) => void) {
    this.#api = api;
    this.#span = span;
    this.#came = came;
    this.#failed = failed;
  }

  /** What is known of a rank in this window, the finest first; asks for more where it is outside. */
  of(rank: number, window: Window): CounterPart | null {
    let held = this.#ranks.get(rank);
    if (!held) {
      held = { coarse: null, fine: null, asked: "", timer: 0, stop: null };
      this.#ranks.set(rank, held);
      const mine = held;
      void this.#fetch(rank, { from: 0, to: this.#span }, null).then((part) => { if (part) mine.coarse = part; });
    }
    const from = Math.max(0, Math.floor(window.from));
    const to = Math.max(from + 1, Math.min(this.#span, Math.ceil(window.to)));
    const asked = `${from}-${to}`;
    if (held.coarse && held.asked !== asked && to - from < this.#span * 0.6) {
      const mine = held;
      mine.asked = asked;
      clearTimeout(mine.timer);
      mine.timer = window_timeout(() => {
        mine.stop?.abort();
        mine.stop = new AbortController();
        void this.#fetch(rank, { from, to }, mine.stop.signal).then((part) => { if (part) mine.fine = part; });
      });
    }
    const fine = held.fine;
    return fine && fine.window.from <= from && fine.window.to >= to && (fine.window.to - fine.window.from) < 4 * (to - from) ? fine : held.coarse;
  }

  end(): void {
    for (const held of this.#ranks.values()) {
      clearTimeout(held.timer);
      held.stop?.abort();
    }
  }

  async #fetch(rank: number, window: Window, signal: AbortSignal | null): Promise<CounterPart | null> {
    try {
      const file = await this.#api.columns("counters", { rank, from: window.from, to: window.to, points: POINTS }, signal ?? undefined);
      this.#came();
      return { window, meta: (file.meta["counters"] ?? []) as CounterMeta[], counter: file.u32("counter"), at: file.f64("at_ns"), low: file.f64("low"), high: file.f64("high") };
    } catch (error) {
      if (!isAbort(error)) this.#failed(error);
      return null;
    } finally {
      queueMicrotask(() => this.#came());
    }
  }
}

function window_timeout(then: () => void): number {
  return globalThis.setTimeout(then, PAUSE_MS) as unknown as number;
}

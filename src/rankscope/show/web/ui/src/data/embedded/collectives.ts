/** Which events are the same collective on different ranks, and how long each waited. */
import { unfolded, type Blocks } from "./blocks.ts";

export interface Matched {
  readonly rank: number;
  readonly event: number;
  readonly match: number | null;
  readonly wait: number | null;
  readonly sequence: number | null;
  readonly kind: number;
}

export class Collectives {
  readonly #ranks: readonly number[];
  readonly #blocks: Blocks;
  #read: Promise<{ of: Map<string, Matched>; members: Map<number, Matched[]> }> | null = null;

  constructor(ranks: readonly number[], blocks: Blocks) {
    this.#ranks = ranks;
    this.#blocks = blocks;
  }

  /** The collective that an event is, and those it was matched with, itself among them; null where it is none. */
  async of(rank: number, event: number): Promise<{ readonly mine: Matched; readonly members: readonly Matched[] } | null> {
    this.#read ??= this.#readAll();
    const { of, members } = await this.#read;
    const mine = of.get(`${rank}.${event}`);
    return mine ? { mine, members: mine.match === null ? [mine] : members.get(mine.match) ?? [mine] } : null;
  }

  async #readAll(): Promise<{ of: Map<string, Matched>; members: Map<number, Matched[]> }> {
    const of = new Map<string, Matched>();
    const members = new Map<number, Matched[]>();
    for (const rank of [...this.#ranks].sort((a, b) => a - b)) {
      const block = await this.#blocks.numbers(`collectives-${rank}`);
      const [events, matches, waits, sequences, kinds] = [block.steps("event"), block.steps("match"), block.of("wait"), block.steps("sequence"), block.of("kind")];
      events.forEach((event, i) => {
        const each: Matched = { rank, event, match: orNull(matches[i]!), wait: orNull(unfolded(waits[i]!)), sequence: orNull(sequences[i]!), kind: kinds[i]! };
        of.set(`${rank}.${event}`, each);
        if (each.match !== null) {
          const others = members.get(each.match);
          if (others) others.push(each);
          else members.set(each.match, [each]);
        }
      });
    }
    return { of, members };
  }
}

/** Written as one more; 0 stands for null. */
function orNull(value: number): number | null {
  return value === 0 ? null : value > 0 ? value - 1 : value;
}

/** The names of events by their number: fetched part by part in the background, for labels and lists. */
import type { Api } from "../data/api.ts";
import type { Known } from "./covering.ts";

export class Names {
  /** The category of those seen on a rank's own lane. */
  readonly known: Known = new Map();
  /** Resolves when all are there, or no more come. */
  readonly all: Promise<void>;
  /** Whether all are there. */
  complete = false;
  readonly #names: string[] = [];
  readonly #ids = new Map<string, number>();
  #complete: () => void = () => undefined;
  #ended = false;

  constructor() {
    this.all = new Promise((resolve) => { this.#complete = resolve; });
  }

  get(id: number): string | undefined {
    return this.#names[id];
  }

  /** The number of a name; undefined where it is not there (yet). */
  idOf(name: string): number | undefined {
    return this.#ids.get(name);
  }

  async load(api: Api, came: () => void): Promise<void> {
    let from: number | null = 0;
    while (from !== null && !this.#ended) {
      const part: { names: string[]; next: number | null } = await api.json("names", { from });
      for (const name of part.names) {
        this.#ids.set(String(name), this.#names.length);
        this.#names.push(String(name));
      }
      from = part.next;
      this.complete = from === null;
      came();
    }
    this.#complete();
  }

  end(): void {
    this.#ended = true;
    this.#complete();
  }
}

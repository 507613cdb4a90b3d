/** The names of events by their number: fetched part by part in the background, for labels and lists. */
import type { Api } from "../data/api.ts";
import type { Known } from "./covering.ts";

export class Names {
  /** The category of those seen on a rank's own lane. */
  readonly known: Known = new Map();
  /** Resolves when all are there, or no more come. */
  readonly all: Promise<void>;
  readonly #names: string[] = [];
  #complete: () => void = () => undefined;
  #ended = false;

  constructor() {
    this.all = new Promise((resolve) => { this.#complete = resolve; });
  }

  get(id: number): string | undefined {
    return this.#names[id];
  }

  async load(api: Api, came: () => void): Promise<void> {
    let from: number | null = 0;
    while (from !== null && !this.#ended) {
      const part: { names: string[]; next: number | null } = await api.json("names", { from });
      for (const name of part.names) this.#names.push(String(name));
      from = part.next;
      came();
    }
    this.#complete();
  }

  end(): void {
    this.#ended = true;
    this.#complete();
  }
}

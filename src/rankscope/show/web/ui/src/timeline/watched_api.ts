/** What the timeline is fetching or decoding, in words: shown as soon as it takes more than a moment. */
import { h } from "../components/dom.ts";
import type { Api, Params } from "../data/api.ts";
import type { ColumnFile } from "../data/column_file.ts";
import { counted } from "../format/ranks.ts";
import { listed } from "../data/embedded/embedded.ts";

const MOMENT_MS = 200;

export interface Pending {
  /** What is asked for, as PROTOCOL.md names it. */
  readonly name: string;
  readonly lanes: number;
}

export class WatchedApi implements Api {
  readonly run: string | null;
  readonly element = h("p", { class: "tl-busy", role: "status", hidden: true, "data-testid": "busy" });
  readonly #api: Api;
  readonly #pending = new Set<Pending>();
  #timer = 0;

  constructor(api: Api) {
    this.#api = api;
    this.run = api.run;
  }

  json<T>(name: string, params?: Params, signal?: AbortSignal): Promise<T> {
    return this.#watched(name, params, this.#api.json<T>(name, params, signal));
  }

  columns(name: string, params?: Params, signal?: AbortSignal): Promise<ColumnFile> {
    return this.#watched(name, params, this.#api.columns(name, params, signal));
  }

  async #watched<T>(name: string, params: Params | undefined, answer: Promise<T>): Promise<T> {
    const mine: Pending = { name, lanes: listed(String(params?.["lanes"] ?? "")).length };
    this.#pending.add(mine);
    this.#timer ||= window.setTimeout(() => this.#show(), MOMENT_MS);
    try {
      return await answer;
    } finally {
      this.#pending.delete(mine);
      if (this.#pending.size === 0) {
        clearTimeout(this.#timer);
        this.#timer = 0;
        this.element.hidden = true;
      } else if (!this.element.hidden) this.#show();
    }
  }

  #show(): void {
    this.element.textContent = pendingText([...this.#pending]);
    this.element.hidden = this.#pending.size === 0;
  }
}

const WORDS: Readonly<Record<string, string>> = {
  search: "Searching all events", range: "Adding up the range", calls: "Adding up the calls", event: "Loading the event", path: "Following the critical path", names: "Loading names", counters: "Loading counters", heat: "Loading lateness",
};

/** One line: the slowest kind in words, and how much of it. */
export function pendingText(pending: readonly Pending[]): string {
  const lanes = pending.reduce((sum, each) => sum + each.lanes, 0);
  const other = pending.find(({ name }) => name in WORDS);
  const words = [...(lanes > 0 ? [`Loading ${counted(lanes, "lane")}`] : []), ...(other ? [WORDS[other.name]!] : [])];
  if (words.length === 0) words.push("Loading");
  return `${words.join(" · ")} …${pending.length > 1 ? ` (${pending.length} requests)` : ""}`;
}

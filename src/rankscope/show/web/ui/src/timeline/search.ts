/** Finding events by name or regular expression: one after the other in the order of time, and as a list. */
import { button } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import type { Api } from "../data/api.ts";
import { searchParams } from "../format/pattern.ts";
import { formatDuration, formatMoment, grouped } from "../format/units.ts";
import type { Place } from "./layout.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import type { Toolbar } from "./toolbar.ts";

interface Hit extends Place { readonly start_ns: number; readonly end_ns: number; readonly name: string }
export interface Found { readonly hit: Hit | null; readonly hits: number; readonly index: number; readonly first?: number; readonly listed?: readonly Hit[] }

/** Hits of a page of the list. */
const LISTED = 100;

type Query = Readonly<Record<string, string | number>>;

/** The next or previous match from a place; where there is no more, the first or last of the run. */
export async function findFrom(api: Api, span: number, query: Query, direction: "next" | "previous", at: Query): Promise<Found> {
  const found = await api.json<Found>("search", { ...query, direction, ...at });
  if (found.hit || found.hits === 0) return found;
  return api.json<Found>("search", { ...query, direction, after: direction === "next" ? -1 : Math.ceil(span) + 1 });
}

export class Search {
  readonly #model: Model;
  readonly #bar: () => Toolbar;
  readonly #notice: Notice;
  readonly #select: (place: Place) => Promise<void>;
  #hit: Found["hit"] = null;
  #index = -1;
  #asked = 0;

  constructor(model: Model, bar: () => Toolbar, notice: Notice, select: (place: Place) => Promise<void>) {
    this.#model = model;
    this.#bar = bar;
    this.#notice = notice;
    this.#select = select;
  }

  async find(text: string, direction: "next" | "previous"): Promise<void> {
    const model = this.#model;
    const bar = this.#bar();
    const asked = ++this.#asked;
    bar.search.value = text;
    if (text.trim() === "") return bar.found("");
    if (text.trim() !== model.query) this.#hit = null;
    model.query = text.trim();
    const query = searchParams(text);
    const from = this.#hit ?? (model.detail && model.selected ? model.detail : null);
    const at = from ? { after: from.start_ns, lane: from.lane, row: from.row } : { after: Math.floor(direction === "next" ? Math.max(-1, model.window.from) : model.window.to) };
    bar.found("searching …");
    try {
      const found = await findFrom(model.api, model.layout.span, query, direction, at);
      if (asked !== this.#asked) return; // another was asked for meanwhile
      this.#hit = found.hit;
      this.#index = found.index;
      if (found.hit) await this.#select(found.hit);
      bar.found(found.hit ? `${grouped(found.index + 1)} of ${grouped(found.hits)}` : "no matches");
      if (!found.hit) this.#notice.announce("No event name matches.");
    } catch (error) {
      bar.found("");
      this.#notice.say(error);
    }
  }

  /** The hits around the current one, or from number `first` on, with their rank and time. */
  async list(text: string, first: number | null = null): Promise<HTMLElement> {
    const { api, layout } = this.#model;
    if (text.trim() === "") return h("p", { class: "quiet-line" }, "Type a part of a name, or a regular expression such as /gemm|attn/.");
    const found = await api.json<Found>("search", { ...searchParams(text), after: this.#hit?.start_ns ?? Math.floor(Math.max(-1, this.#model.window.from)), ...(this.#hit ? { lane: this.#hit.lane, row: this.#hit.row, direction: "previous" } : {}), count: LISTED, ...(first === null ? {} : { first }) });
    const [start, listed] = [found.first ?? 0, found.listed ?? []];
    if (found.hits === 0) return h("p", { class: "quiet-line" }, "No event name matches.");
    const part = h("div", { class: "tl-hits" });
    const turn = (label: string, to: number): HTMLElement => button({ class: "quiet" }, () => void this.list(text, to).then((next) => part.replaceWith(next), (error: unknown) => this.#notice.say(error)), label);
    part.append(h("p", { class: "quiet-line" }, `${grouped(start + 1)} to ${grouped(start + listed.length)} of ${grouped(found.hits)}`, " ",
      start > 0 ? turn("Earlier", Math.max(0, start - LISTED)) : null, " ", start + listed.length < found.hits ? turn("Later", start + LISTED) : null),
    h("div", { class: "tl-scrolled", tabindex: "0", role: "region", "aria-label": "Matching events" }, h("table", { class: "tl-members", "aria-label": "Matching events", "data-testid": "hits" },
      h("thead", {}, h("tr", {}, ["Event", "Rank", "Start", "Duration"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, listed.map((hit, i) => h("tr", { "aria-current": start + i === this.#index ? "true" : null },
        h("th", { scope: "row" }, button({ class: "link" }, () => this.#choose(hit, start + i, found.hits), named(hit.name, 80))),
        h("td", {}, String(layout.tracks[layout.laneTrack[hit.lane] ?? 0]?.rank ?? "")), h("td", {}, formatMoment(hit.start_ns)), h("td", {}, formatDuration(hit.end_ns - hit.start_ns, 3))))))));
    return part;
  }

  #choose(hit: Hit, index: number, hits: number): void {
    this.#hit = hit;
    this.#index = index;
    this.#bar().found(`${grouped(index + 1)} of ${grouped(hits)}`);
    void this.#select(hit);
  }
}

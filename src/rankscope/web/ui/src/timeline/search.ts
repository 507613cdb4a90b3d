/** Finding events by name, one after the other in the order of time. */
import { shownName } from "../format/text.ts";
import { grouped } from "../format/units.ts";
import type { Model, Place } from "./model.ts";
import type { Notice } from "./notice.ts";
import type { Toolbar } from "./toolbar.ts";

interface Found { readonly hit: (Place & { start_ns: number; end_ns: number; name: string }) | null; readonly hits: number; readonly index: number }

export class Search {
  readonly #model: Model;
  readonly #bar: () => Toolbar;
  readonly #notice: Notice;
  readonly #select: (place: Place) => Promise<void>;
  #hit: Found["hit"] = null;
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
    const query = text.trim();
    const asked = ++this.#asked;
    bar.search.value = text;
    if (query === "") return bar.found("");
    if (query !== model.query) this.#hit = null;
    model.query = query;
    const from = this.#hit ?? (model.detail && model.selected ? model.detail : null);
    const at = from ? { after: from.start_ns, lane: from.lane, row: from.row } : { after: Math.floor(direction === "next" ? Math.max(-1, model.window.from) : model.window.to) };
    bar.found("searching …");
    try {
      let found = await model.api.json<Found>("search", { q: query, direction, ...at });
      if (!found.hit && found.hits > 0) found = await model.api.json<Found>("search", { q: query, direction, after: direction === "next" ? -1 : Math.ceil(model.layout.span) + 1 }); // around the end
      if (asked !== this.#asked) return; // another was asked for meanwhile
      this.#hit = found.hit;
      if (found.hit) await this.#select(found.hit);
      bar.found(found.hit ? `${grouped(found.index + 1)} of ${grouped(found.hits)}` : "no matches");
      if (!found.hit) this.#notice.announce(`No event name contains ${shownName(query, 80)}.`);
    } catch (error) {
      bar.found("");
      this.#notice.say(error);
    }
  }
}

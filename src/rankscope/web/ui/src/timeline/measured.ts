/** The measured range: marked in the picture, with its statistics below. */
import { h } from "../components/dom.ts";
import { isAbort } from "../data/api.ts";
import { formatDuration } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import { ranges } from "./loader.ts";
import { measurePanel } from "./measure.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import type { Permalink } from "./permalink.ts";
import { clamped, type Window } from "./window.ts";

export class Measured {
  readonly element = h("div", { class: "tl-below" });
  readonly #context: ViewContext;
  readonly #model: Model;
  readonly #permalink: Permalink;
  readonly #notice: Notice;
  readonly #find: (name: string) => void;

  constructor(context: ViewContext, model: Model, permalink: Permalink, notice: Notice, find: (name: string) => void) {
    this.#context = context;
    this.#model = model;
    this.#permalink = permalink;
    this.#notice = notice;
    this.#find = find;
  }

  /** Measures a stretch, to the nanosecond. */
  async show(window: Window, { history = true }: { history?: boolean } = {}): Promise<void> {
    const model = this.#model;
    const [from, to] = [Math.max(0, Math.round(window.from)), Math.round(window.to)];
    const exact = model.measured = { from, to: Math.max(from + 1, to) };
    model.changed();
    if (history) this.#permalink.push();
    try {
      const file = await model.api.columns("range", { from: exact.from, to: exact.to, ranks: this.#ranks() });
      if (model.measured !== exact) return;
      this.element.replaceChildren(measurePanel(this.#context, model, exact, file, {
        close: () => this.close(), zoomTo: () => this.#permalink.go(clamped(exact, model.layout.span)), find: this.#find,
      }));
      this.#notice.announce(`Measured ${formatDuration(exact.to - exact.from)}. The table below lists the time per category and rank.`);
    } catch (error) {
      if (!isAbort(error)) this.#notice.say(error);
    }
  }

  clear(): void {
    this.#model.measured = null;
    this.element.replaceChildren();
  }

  close(): void {
    this.clear();
    this.#model.changed();
    this.#permalink.push();
  }

  /** The ranks visible: those that the filter leaves. */
  #ranks(): string {
    const { layout, rows } = this.#model;
    const shown = layout.ranks.filter((rank) => (rows.rowOfRank[rank.index] ?? -1) >= 0);
    return ranges((shown.length === 0 ? layout.ranks : shown).map(({ rank }) => rank));
  }
}

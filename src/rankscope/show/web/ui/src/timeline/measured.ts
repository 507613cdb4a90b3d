/** The measured range: marked in the picture, with its statistics and calls in a pane below. */
import { FIRST, type CallsChoice, type Shape } from "../calls/choice.ts";
import { CallsPane } from "../calls/pane.ts";
import { button } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { isAbort } from "../data/api.ts";
import { formatDuration, formatMoment } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import { ranges } from "./lists.ts";
import { summaryOf } from "./measure.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import type { Permalink } from "./permalink.ts";
import { clamped, type Window } from "./window.ts";

const TABS: readonly (readonly [Shape | null, string])[] = [[null, "Summary"], ["flame", "Flame graph"], ["tree", "Call tree"]];

export class Measured {
  readonly element = h("div", { class: "tl-below" });
  readonly #context: ViewContext;
  readonly #model: Model;
  readonly #permalink: Permalink;
  readonly #notice: Notice;
  readonly #find: (name: string) => void;
  readonly #place = h("div", { class: "tl-measured" });
  #calls: CallsPane | null = null;
  /** The range and the ranks of the calls that are shown. */
  #callsOf = "";
  /** What the reader chose last, for when the calls are shown again. */
  #last: CallsChoice = FIRST;

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
    if (history && model.calls !== null) model.calls = { ...model.calls, focus: "", find: "" }; // which were chosen in another range
    model.changed();
    if (history) this.#permalink.push();
    try {
      await this.#fill(exact);
      if (model.measured !== exact) return;
      this.#frame(exact);
      this.#notice.announce(`Measured ${formatDuration(exact.to - exact.from)}. The pane below has the time per category and rank, and the calls.`);
    } catch (error) {
      if (!isAbort(error)) this.#notice.say(error);
    }
  }

  clear(): void {
    this.#model.measured = null;
    this.#end();
    this.element.replaceChildren();
  }

  close(): void {
    this.clear();
    this.#model.calls = null;
    this.#model.changed();
    this.#permalink.push();
  }

  /** The statistics, or the calls, as chosen. */
  async #fill(exact: Window): Promise<void> {
    const model = this.#model;
    const choice = model.calls;
    if (choice === null) {
      const file = await model.api.columns("range", { from: exact.from, to: exact.to, ranks: ranges(this.#ranks()) });
      if (model.measured !== exact || model.calls !== null) return;
      this.#end();
      this.#place.replaceChildren(...summaryOf(this.#context, model, exact, file, { find: this.#find }));
      return;
    }
    this.#last = choice;
    const ranks = this.#ranks();
    const of = `${exact.from} ${exact.to} ${ranges(ranks)}`;
    if (this.#calls && this.#callsOf === of) return this.#calls.show(choice); // Back within the same calls
    this.#end();
    this.#callsOf = of;
    this.#calls = new CallsPane(this.#context, model.api, model.layout, exact, ranks, choice, {
      chosen: (now, leap) => {
        const change = (): void => { this.#last = model.calls = now; };
        if (leap) return this.#permalink.leap(change);
        change();
        this.#permalink.note();
      },
      failed: (error) => this.#notice.say(error),
    });
    this.#place.replaceChildren(this.#calls.element);
  }

  #frame(exact: Window): void {
    const model = this.#model;
    const shape = model.calls?.shape ?? null;
    const had = this.element.contains(document.activeElement);
    const tabs = TABS.map(([id, title]) => h("button", { type: "button", role: "tab", class: "quiet", "aria-selected": String(id === shape), tabindex: id === shape ? "0" : "-1", "data-testid": `range-${id ?? "summary"}`, click: () => void this.#turn(exact, id) }, title));
    const list = h("div", { class: "tl-tabs", role: "tablist", "aria-label": "Measured range", keydown: (event) => this.#along(event as KeyboardEvent, tabs) }, tabs);
    this.element.replaceChildren(h("section", { class: "tl-measure", "aria-label": "Measured range", "data-testid": "measure", "data-from": exact.from, "data-to": exact.to },
      h("div", { class: "tl-panel-head" }, h("h3", {}, `${formatDuration(exact.to - exact.from)} measured from ${formatMoment(exact.from)}`), list,
        button({ class: "quiet" }, () => this.#permalink.go(clamped(exact, model.layout.span)), "Zoom to range"), button({ class: "quiet", "aria-label": "Close the measurement" }, () => this.close(), "×")),
      this.#place));
    this.element.dispatchEvent(new Event("filled"));
    if (had) tabs.find((tab) => tab.tabIndex === 0)?.focus({ preventScroll: true });
  }

  async #turn(exact: Window, shape: Shape | null): Promise<void> {
    const model = this.#model;
    this.#permalink.leap(() => { model.calls = shape === null ? null : { ...this.#last, shape }; });
    try {
      await this.#fill(exact);
    } catch (error) {
      if (!isAbort(error)) this.#notice.say(error);
    }
    this.#frame(exact);
  }

  #along(event: KeyboardEvent, tabs: readonly HTMLElement[]): void {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const at = tabs.indexOf(document.activeElement as HTMLElement);
    tabs[(at + by + tabs.length) % tabs.length]?.click();
  }

  #end(): void {
    this.#calls?.end();
    this.#calls = null;
  }

  /** The ranks that the filter leaves. */
  #ranks(): number[] {
    const { layout, rows } = this.#model;
    return (rows.ranks.length === 0 ? layout.ranks : rows.ranks).map(({ rank }) => rank).sort((a, b) => a - b);
  }
}

/** The timeline: its parts put together, and what each gesture does. */
import { h, named } from "../components/dom.ts";
import { ApiError, isAbort, type Api } from "../data/api.ts";
import type { Finding } from "../data/payload.ts";
import { shownName } from "../format/text.ts";
import { formatDuration, grouped } from "../format/units.ts";
import { onThemeChange } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { readAddress, rounded, writeAddress, type Address } from "./address.ts";
import { Counters } from "./counters.ts";
import type { EventDetail } from "./detail.ts";
import { Gutter } from "./gutter.ts";
import { askedHit, hitAt, type Hit, type Part } from "./hit.ts";
import { Input, rowUnder } from "./input.ts";
import { rankIndex, stepWindow, type Layout } from "./layout.ts";
import { corner, legend, marksOf, Tip } from "./legend.ts";
import { Loader, ranges } from "./loader.ts";
import { measurePanel } from "./measure.ts";
import { Model, type Place } from "./model.ts";
import { Names } from "./names.ts";
import { detailPanel, spoken } from "./panel.ts";
import { RULER, Stage } from "./stage.ts";
import { standIn } from "./rows.ts";
import { TileCache } from "./tiles.ts";
import { toolbar, type Toolbar } from "./toolbar.ts";
import { around, clamped, panned, whole, type Window } from "./window.ts";

const REACH_PX = 5;
const NOTE_PAUSE_MS = 250;

interface Found { readonly hit: (Place & { start_ns: number; end_ns: number; name: string }) | null; readonly hits: number; readonly index: number }

export class Timeline {
  readonly element: HTMLElement;
  readonly #context: ViewContext;
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #loader: Loader;
  readonly #gutter: Gutter;
  readonly #input: Input;
  readonly #bar: Toolbar;
  readonly #side = h("div", { class: "tl-side" });
  readonly #below = h("div", { class: "tl-below" });
  readonly #tip: Tip;
  readonly #live = h("p", { class: "unseen", role: "status", "data-testid": "live" });
  readonly #notice = h("div", { class: "tl-notice", role: "status", hidden: true });
  readonly #ending: () => void;
  #noting = 0;
  #hovering = 0;
  #asked = 0;
  #hit: Found["hit"] = null;

  constructor(context: ViewContext, api: Api, layout: Layout, findings: readonly Finding[]) {
    this.#context = context;
    const cache = new TileCache(layout.baseBin, layout.factor);
    const failed = (error: unknown): void => this.#say(error);
    const counters = new Counters(api, layout.span, () => this.#model.changed(), failed);
    const names = new Names();
    const model = this.#model = new Model(api, layout, cache, names, counters, marksOf(findings));
    this.#loader = new Loader(api, cache, layout, () => { this.#notice.hidden = true; model.changed(); }, failed);
    this.#gutter = new Gutter(model, () => this.#stage.box);
    this.#stage = new Stage(model, this.#loader, this.#gutter.element, corner(layout), "tl-help");
    this.#tip = new Tip(layout, this.#stage);
    this.#stage.afterFrame(() => this.#gutter.draw());
    this.#input = new Input(model, this.#stage, {
      pick: (x, y) => void this.#pick(x, y), hover: (x, y) => this.#hover(x, y), leave: () => this.#tip.hide(),
      measured: (done) => { if (done) void this.#measure(); }, moved: () => this.#note(), key: (event) => this.#key(event),
    });
    this.#bar = toolbar(model, findings, {
      search: (text, direction) => void this.#search(text, direction), zoom: (factor) => this.#input.zoom(factor), whole: () => this.#go(whole(layout.span)),
      step: (step) => this.#toStep(step), rank: (rank) => this.#toRank(rank), finding: (finding) => this.#toFinding(finding),
      filter: (text) => { model.filter = text; model.refold(); this.#note(); },
      openAll: (open) => { model.open = new Set(open ? layout.ranks.map(({ rank }) => rank) : []); model.refold(); this.#note(); },
      counters: (shown) => { model.showCounters = shown; model.refold(); this.#note(); },
      measure: () => { this.#input.measuring = true; this.#announce("Drag over the picture to measure."); this.#stage.element.focus({ preventScroll: true }); },
    });
    this.element = h("div", { class: "tl", "data-testid": "timeline" }, this.#bar.element, this.#notice,
      h("div", { class: "tl-main" }, h("div", { class: "tl-frame" }, this.#stage.box, this.#tip.element), this.#side),
      legend(layout), this.#live, this.#below);
    this.#apply(readAddress(context.place.params), true);
    this.#live.textContent = "";
    void names.load(api, () => model.changed()).catch(failed);
    const watch = new ResizeObserver(() => this.#stage.resize());
    watch.observe(this.#stage.box);
    watch.observe(this.#stage.element);
    const stop = onThemeChange(() => this.#stage.recolour());
    Object.assign(this.#stage.element, { rankscopeStats: () => this.#stage.stats() });
    context.onPlace((place) => this.#apply(readAddress(place.params), false));
    this.#ending = () => {
      watch.disconnect();
      stop();
      for (const part of [this.#stage, this.#loader, names, counters]) part.end();
    };
  }

  /** Stops all that runs; the address is left true to the last view. */
  end(): void {
    if (this.#noting !== 0) {
      clearTimeout(this.#noting);
      if (this.#context.router.place().view === "timeline") this.#context.router.note(this.#address());
    }
    this.#ending();
  }

  // From and to the address.

  #apply(address: Address, first: boolean): void {
    const model = this.#model;
    model.open = new Set(address.open ?? model.openAtFirst);
    model.tracks = new Set(address.tracks);
    model.filter = address.filter;
    model.query = address.query;
    model.showCounters = address.counters;
    this.#bar.filter.value = address.filter;
    this.#bar.search.value = address.query;
    model.window = address.window ? clamped(address.window, model.layout.span) : whole(model.layout.span);
    model.measured = address.measured;
    model.refold();
    const { at } = address;
    if (at) requestAnimationFrame(() => this.#scrollToRank(at.rank, at.by));
    else if (!first) this.#stage.box.scrollTop = 0;
    if (address.rank !== null) {
      if (model.layout.ranks.length > 1 && address.rank !== null) model.open.add(address.rank);
      model.refold();
      const rank = address.rank;
      requestAnimationFrame(() => this.#scrollToRank(rank));
    }
    if (address.step !== null) {
      const window = stepWindow(model.layout, address.step, address.rank);
      if (window) model.show(window);
    }
    if (!address.selected) this.#unselect(false);
    else if (model.selected?.lane !== address.selected.lane || model.selected.row !== address.selected.row) void this.#select(address.selected, { history: false, show: address.window === null });
    if (model.measured) void this.#measure(false);
    else this.#below.replaceChildren();
  }

  #address(): Record<string, string> {
    const model = this.#model;
    const top = this.#stage.topRank();
    model.window = rounded(model.window);
    const all = whole(model.layout.span);
    const untouched = model.window.from === all.from && model.window.to === all.to;
    return writeAddress({
      window: untouched ? null : model.window, selected: model.selected, measured: model.measured, open: model.open, tracks: model.tracks,
      filter: model.filter, query: model.query, counters: model.showCounters, at: top,
    }, model.openAtFirst);
  }

  /** Small moves change the address in place, some time after the last of them. */
  #note(): void {
    clearTimeout(this.#noting);
    this.#noting = window.setTimeout(() => this.#context.router.note(this.#address()), NOTE_PAUSE_MS);
  }

  /** A leap: Back leads to where the reader was. */
  #push(): void {
    clearTimeout(this.#noting);
    this.#context.router.push(this.#address());
  }

  #go(window: Window): void {
    this.#context.router.note(this.#address());
    delete this.#stage.element.dataset["settled"];
    this.#model.show(window);
    this.#push();
  }

  // Jumps.

  #toStep(step: number, rank: number | null = null): void {
    const window = stepWindow(this.#model.layout, step, rank);
    if (window) this.#go(window);
  }

  /** The step before or after the one in the middle of the view. */
  #stepBy(by: number): void {
    const { layout, window } = this.#model;
    const steps = layout.ranks[0]?.steps.filter((one) => one.step !== null) ?? [];
    const middle = (window.from + window.to) / 2;
    const now = steps.findIndex((one) => one.end > middle);
    const next = steps[Math.max(0, Math.min(steps.length - 1, (now < 0 ? steps.length : now) + by))];
    if (next?.step !== null && next !== undefined) this.#toStep(next.step);
  }

  #toRank(rank: number): void {
    this.#model.toggleRank(rank, true);
    this.#scrollToRank(rank);
    this.#push();
  }

  #scrollToRank(rank: number, by = -4): void {
    const row = this.#model.rows.rowOfRank[rankIndex(this.#model.layout, rank)] ?? -1;
    if (row >= 0) this.#stage.box.scrollTop = Math.max(0, (this.#model.rows.top[row] ?? 0) + by);
    this.#stage.request();
  }

  #toFinding(finding: Finding): void {
    const rank = finding.ranks[0] ?? null;
    if (rank !== null) this.#model.toggleRank(rank, true);
    const window = finding.steps[0] === undefined ? null : stepWindow(this.#model.layout, finding.steps[0], rank);
    if (window) this.#model.show(window);
    if (rank !== null) this.#scrollToRank(rank);
    this.#push();
    this.#announce(`${shownName(finding.title, 200)}.`);
  }

  // Selecting.

  async #pick(x: number, y: number): Promise<void> {
    const asked = ++this.#asked;
    const hit = await this.#exactly(x, y).catch((error: unknown) => { this.#say(error); return null; });
    if (asked !== this.#asked) return;
    if (hit) void this.#select(hit, {});
    else if (y >= RULER) this.#unselect(true);
  }

  #under(x: number, y: number): Hit | null {
    const frame = this.#stage.frame;
    const point = this.#point(x, y);
    return frame && point ? hitAt(frame.scene, point.lane, point.at, REACH_PX * point.perPixel, point.part) : null;
  }

  /** As `#under`; where the bin there names an event of the row's other part, or one that may be, the server is asked for the events. */
  async #exactly(x: number, y: number): Promise<Hit | null> {
    const hit = this.#under(x, y);
    const point = this.#point(x, y);
    if (hit || !point?.part) return hit;
    const { lane, at, perPixel, part } = point;
    return await askedHit(this.#model.api, lane, at, 0.5 * perPixel, part.left) ?? askedHit(this.#model.api, lane, at, REACH_PX * perPixel, part.left);
  }

  #point(x: number, y: number): { lane: number; at: number; perPixel: number; part: Part | null } | null {
    const { window, width, rows, names } = this.#model;
    const row = rowUnder(this.#model, y, this.#stage.box.scrollTop);
    const lane = row < 0 ? -1 : rows.lane[row] ?? -1;
    if (lane < 0) return null;
    const perPixel = (window.to - window.from) / width;
    const left = this.#stage.leftOut(row, y - RULER + this.#stage.box.scrollTop - (rows.top[row] ?? 0));
    return { lane, at: window.from + x * perPixel, perPixel, part: left && { left, known: names.known } };
  }

  async #select(place: Place, { history = true, show = false }: { history?: boolean; show?: boolean }): Promise<void> {
    const asked = ++this.#asked;
    const model = this.#model;
    let detail: EventDetail;
    try {
      detail = await model.api.json<EventDetail>("event", { lane: place.lane, row: place.row });
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.#announce("There is no further event on this lane.");
      else this.#say(error);
      return;
    }
    if (asked !== this.#asked) return;
    model.selected = { lane: place.lane, row: place.row };
    model.detail = detail;
    model.reveal(detail.lane);
    this.#bring(detail, show);
    const had = this.#side.contains(document.activeElement);
    this.#side.replaceChildren(detailPanel(model, detail, {
      select: (to) => void this.#select(to, {}), zoomTo: () => this.#zoomToSelection(), close: () => { this.#unselect(true); this.#stage.element.focus({ preventScroll: true }); },
      find: (name) => void this.#search(name, "next"), measure: () => { model.measured = { from: detail.start_ns, to: Math.max(detail.end_ns, detail.start_ns + 1) }; void this.#measure(); },
    }));
    this.element.classList.add("with-side");
    if (had) this.#side.querySelector<HTMLElement>("button")?.focus({ preventScroll: true });
    this.#announce(spoken(model, detail));
    model.changed();
    if (history) this.#push();
  }

  /** Moves the view no more than is needed to see an event. */
  #bring(detail: EventDetail, zoom: boolean): void {
    const model = this.#model;
    const { window, layout, width } = model;
    const perPixel = (window.to - window.from) / width;
    if (zoom && (detail.end_ns - detail.start_ns) / perPixel < 8) model.window = around(detail.start_ns, detail.end_ns, layout.span, 6);
    else if (detail.end_ns < window.from + 10 * perPixel || detail.start_ns > window.to - 10 * perPixel) {
      model.window = panned(window, (detail.start_ns + detail.end_ns) / 2 - (window.from + window.to) / 2, layout.span);
    }
    const row = standIn(layout, model.rows, detail.lane);
    if (row >= 0) this.#stage.scrollToRow(row);
  }

  #unselect(history: boolean): void {
    this.#asked++;
    const had = this.#model.selected !== null;
    this.#model.selected = null;
    this.#model.detail = null;
    this.#side.replaceChildren();
    this.element.classList.remove("with-side");
    this.#model.changed();
    if (had && history) this.#push();
  }

  #zoomToSelection(): void {
    const { detail, layout } = this.#model;
    if (detail) this.#go(around(detail.start_ns, detail.end_ns, layout.span, 0.6));
  }

  // Searching and measuring.

  async #search(text: string, direction: "next" | "previous"): Promise<void> {
    const model = this.#model;
    const query = text.trim();
    this.#bar.search.value = text;
    if (query === "") return this.#bar.found("");
    if (query !== model.query) this.#hit = null;
    model.query = query;
    const from = this.#hit ?? (model.detail && model.selected ? model.detail : null);
    const at = from ? { after: from.start_ns, lane: from.lane, row: from.row } : { after: Math.floor(direction === "next" ? Math.max(-1, model.window.from) : model.window.to) };
    this.#bar.found("searching …");
    try {
      let found = await model.api.json<Found>("search", { q: query, direction, ...at });
      if (!found.hit && found.hits > 0) found = await model.api.json<Found>("search", { q: query, direction, after: direction === "next" ? -1 : Math.ceil(model.layout.span) + 1 }); // around the end
      this.#hit = found.hit;
      if (found.hit) await this.#select(found.hit, { show: true });
      this.#bar.found(found.hit ? `${grouped(found.index + 1)} of ${grouped(found.hits)}` : "none found");
      if (!found.hit) this.#announce(`Nothing is called ${shownName(query, 80)}.`);
    } catch (error) {
      this.#bar.found("");
      this.#say(error);
    }
  }

  async #measure(history = true): Promise<void> {
    const model = this.#model;
    const window = model.measured;
    if (!window) return;
    const [from, to] = [Math.max(0, Math.round(window.from)), Math.round(window.to)];
    const exact = model.measured = { from, to: Math.max(from + 1, to) };
    model.changed();
    if (history) this.#push();
    try {
      const file = await model.api.columns("range", { from: exact.from, to: exact.to, ranks: this.#shownRanks() });
      if (model.measured !== exact) return;
      this.#below.replaceChildren(measurePanel(this.#context, model, exact, file, {
        close: () => this.#unmeasure(), zoomTo: () => this.#go(clamped(exact, model.layout.span)), find: (name) => void this.#search(name, "next"),
      }));
      this.#announce(`Measured ${formatDuration(exact.to - exact.from)}; the table below holds the time by category and rank.`);
    } catch (error) {
      if (!isAbort(error)) this.#say(error);
    }
  }

  #shownRanks(): string {
    const { layout, rows } = this.#model;
    const shown = layout.ranks.filter((rank) => (rows.rowOfRank[rank.index] ?? -1) >= 0);
    return shown.length === layout.ranks.length ? ranges(layout.ranks.map(({ rank }) => rank)) : ranges(shown.map(({ rank }) => rank));
  }

  #unmeasure(): void {
    this.#model.measured = null;
    this.#below.replaceChildren();
    this.#model.changed();
    this.#push();
  }

  // Keys.

  #key(event: KeyboardEvent): boolean {
    const model = this.#model;
    const acts: Record<string, () => void> = {
      ",": () => this.#along(-1), ".": () => this.#along(1), j: () => void this.#across(1), k: () => void this.#across(-1), e: () => void this.#across(0),
      f: () => this.#zoomToSelection(), "0": () => this.#go(whole(model.layout.span)), Home: () => this.#go(whole(model.layout.span)), "/": () => this.#bar.search.focus(),
      n: () => void this.#search(model.query, event.shiftKey ? "previous" : "next"), "[": () => this.#stepBy(-1), "]": () => this.#stepBy(1),
      m: () => { model.measured = model.detail ? { from: model.detail.start_ns, to: model.detail.end_ns } : { ...model.window }; void this.#measure(); },
      Enter: () => (model.detail ? this.#side.querySelector<HTMLElement>("button")?.focus() : void this.#across(0)),
      Escape: () => (model.measured ? this.#unmeasure() : this.#unselect(true)),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return false;
    act();
    return true;
  }

  #along(by: number): void {
    const { selected } = this.#model;
    if (selected) void this.#select({ lane: selected.lane, row: selected.row + by }, {});
    else void this.#across(0);
  }

  /** Selects on another lane what runs when the selected event does; with 0, in the middle of the first lane in sight. */
  async #across(by: number): Promise<void> {
    const { rows, selected, detail, window, layout, api } = this.#model;
    const at = detail ? (detail.start_ns + detail.end_ns) / 2 : (window.from + window.to) / 2;
    let row = selected ? standIn(layout, rows, selected.lane) + by : this.#stage.frame?.first ?? 0;
    for (; row >= 0 && row < rows.length; row += by < 0 ? -1 : 1) {
      const lane = rows.lane[row] ?? -1;
      if (lane < 0) continue;
      // The server takes whole nanoseconds; what touches the instant comes first, else what follows it.
      const file = await api.columns("events", { lanes: lane, from: Math.max(0, Math.floor(at)), to: Math.ceil(window.to), limit: 1 }).catch((error: unknown) => { this.#say(error); return null; });
      const next = file?.u32("row")[0];
      if (next !== undefined) return this.#select({ lane, row: next }, {});
      if (!file) return;
    }
    this.#announce("There is no further lane with an event here.");
  }

  #hover(x: number, y: number): void {
    if (this.#hovering !== 0) cancelAnimationFrame(this.#hovering);
    this.#hovering = requestAnimationFrame(() => {
      this.#hovering = 0;
      const hit = this.#under(x, y);
      const name = hit ? this.#model.names.get(hit.name) : undefined;
      this.#stage.element.classList.toggle("over", Boolean(hit));
      if (hit && name !== undefined) this.#tip.show(x, y, hit, name);
      else this.#tip.hide();
    });
  }

  #announce(text: string): void {
    this.#live.textContent = text;
  }

  #say(error: unknown): void {
    const [what, hint] = error instanceof ApiError ? [error.message, error.hint] : ["The timeline could not use what the server sent.", error instanceof Error ? error.message : ""];
    this.#notice.replaceChildren(h("strong", {}, named(what, 300)), " ", named(hint, 400));
    this.#notice.hidden = false;
  }
}

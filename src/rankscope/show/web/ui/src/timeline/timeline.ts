/** The timeline: its parts put together, and what each gesture does. */
import { h } from "../components/dom.ts";
import { ApiError, type Api } from "../data/api.ts";
import type { Finding } from "../data/payload.ts";
import { exactly, slashed } from "../format/pattern.ts";
import { onThemeChange } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { FIRST } from "../calls/choice.ts";
import { readAddress, sameNumbers, type Address } from "./address.ts";
import { ELSEWHERE, eventParams, findEvent, type EventTime } from "./anchor.ts";
import { Counters } from "./counters.ts";
import { FlagEditor } from "./flag_editor.ts";
import { RULER } from "./frame.ts";
import { groupings } from "./groups.ts";
import { Gutter } from "./gutter.ts";
import { Input } from "./input.ts";
import { Jump } from "./jump.ts";
import { rankIndex, stepRange, stepWindow, type Layout } from "./layout.ts";
import { Help } from "./help.ts";
import { corner, legend, marksOf } from "./legend.ts";
import { Loader } from "./loader.ts";
import { Measured } from "./measured.ts";
import { Minimap } from "./minimap.ts";
import { Model } from "./model.ts";
import { Names } from "./names.ts";
import { Notice } from "./notice.ts";
import type { Heat, Order } from "./order.ts";
import { CriticalPath } from "./path_line.ts";
import { Permalink } from "./permalink.ts";
import { RowActions } from "./row_actions.ts";
import { findFrom, Search } from "./search.ts";
import { Selection } from "./selection.ts";
import { Stage } from "./stage.ts";
import { TileCache } from "./tiles.ts";
import { Tip } from "./tip.ts";
import { toolbar, type Toolbar } from "./toolbar.ts";
import { Walk } from "./walk.ts";
import { WatchedApi } from "./watched_api.ts";
import { around, clamped, whole } from "./window.ts";

/** Until what the server is still computing is asked for again. */
const AGAIN_MS = 1000;
/** Stragglers that are pinned at first, at most. */
const MOST_PINS = 3;

export class Timeline {
  readonly element: HTMLElement;
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #input: Input;
  readonly #bar: Toolbar;
  readonly #notice = new Notice();
  readonly #jump: Jump;
  readonly #selection: Selection;
  readonly #search: Search;
  readonly #measured: Measured;
  readonly #tip: Tip;
  readonly #help = new Help();
  readonly #path: CriticalPath;
  readonly #flags: FlagEditor;
  readonly #rowActions: RowActions;
  readonly #ending: () => void;
  #later = 0;
  /** The address names the pinned ranks, or that there are none. */
  #pinsChosen = false;

  constructor(context: ViewContext, source: Api, layout: Layout) {
    const api = new WatchedApi(source);
    const cache = new TileCache(layout.baseBin, layout.factor);
    const notice = this.#notice;
    const failed = (error: unknown): void => notice.say(error);
    const counters = new Counters(api, layout.span, () => this.#model.changed(), failed);
    const names = new Names();
    const model = this.#model = new Model(api, layout, cache, names, counters);
    const loader = new Loader(api, cache, layout, model.nameLanes, (answered) => { if (answered) notice.answered(); model.changed(); }, failed);
    const gutter = new Gutter(model, () => this.#stage.box, () => permalink.note());
    const stage = this.#stage = new Stage(model, loader, [gutter.pins, gutter.element], corner(layout), "tl-help");
    stage.afterFrame(() => gutter.draw());
    const permalink = new Permalink(context.router, model, stage);
    this.#flags = new FlagEditor(model, stage, () => permalink.note());
    const walk = new Walk(context);
    const path = this.#path = new CriticalPath(model, context.router, notice, () => permalink.note());
    this.#rowActions = new RowActions(model, () => permalink.note());
    const jump = this.#jump = new Jump(model, stage, permalink, notice);
    const find = (name: string): void => void this.#search.find(name, "next");
    const measured = this.#measured = new Measured(context, model, permalink, notice, find);
    const selection = this.#selection = new Selection(model, stage, permalink, notice, {
      find, measure: (window) => void measured.show(window), step: (rank, step) => this.#compare(rank, step), panel: (shown) => this.element.classList.toggle("with-side", shown),
    });
    this.#search = new Search(model, () => this.#bar, notice, (place) => selection.select(place, { show: true }));
    this.#tip = new Tip(model, stage, (x, y) => selection.under(x, y));
    this.#input = new Input(model, stage, {
      pick: (x, y) => (y < RULER ? this.#flags.click(x) : void selection.pick(x, y)), hover: (x, y) => this.#tip.move(x, y), leave: () => this.#tip.leave(),
      measured: (done) => { if (done && model.measured) void measured.show(model.measured); }, moved: () => permalink.note(), key: (event) => this.#key(event),
    });
    this.#bar = toolbar(model, {
      search: (text, direction) => void this.#search.find(text, direction),
      hits: (text) => this.#search.list(text).catch((error: unknown) => { notice.say(error); return h("p", {}, "The search failed."); }),
      zoom: (factor) => this.#input.zoom(factor), whole: () => jump.toWindow(whole(layout.span)),
      step: (step) => jump.toStep(step), rank: (rank) => jump.toRank(rank), finding: (finding) => (finding.place?.event ? context.router.update({ ...ELSEWHERE, ...eventParams(finding.place.event) }) : jump.toFinding(finding)),
      filter: (text) => { model.filter = text; model.refold(); permalink.note(); },
      openAll: (open) => { model.openGroups = new Set(open ? model.groups?.map(({ index }) => index) : []); model.open = new Set(open ? layout.ranks.map(({ rank }) => rank) : []); model.refold(); permalink.note(); },
      counters: (shown) => { model.showCounters = shown; model.refold(); permalink.note(); },
      order: (order) => void this.#arrange(order, model.groupBy).then(() => permalink.note()), group: (by) => { model.openGroups.clear(); void this.#arrange(model.order, by).then(() => permalink.note()); }, showHidden: () => this.#rowActions.showAll(),
      help: () => this.#help.toggle(), path: () => path.toggle(),
      measure: () => { this.#input.measuring = true; notice.hint("Drag across the timeline to measure."); stage.element.focus({ preventScroll: true }); },
    });
    const minimap = new Minimap(model, () => permalink.note());
    stage.afterFrame(() => minimap.draw());
    const frame = h("div", { class: "tl-frame" }, minimap.element, stage.box, api.element, notice.toast, this.#rowActions.element, this.#flags.element, this.#tip.element);
    for (const names of [gutter.element, gutter.pins]) this.#rowActions.watch(names, frame);
    const used = (pane: HTMLElement): void => { for (const each of [selection.element, measured.element]) each.dataset["used"] = String(each === pane); };
    for (const pane of [selection.element, measured.element]) for (const event of ["pointerdown", "focusin", "filled"]) pane.addEventListener(event, () => used(pane));
    this.element = h("div", { class: "tl", "data-testid": "timeline" }, this.#bar.element, notice.element, walk.element, path.element,
      h("div", { class: "tl-main" }, frame, selection.element, measured.element),
      legend(layout), this.#help.element, notice.live);
    this.#apply(readAddress(context.place.params), true);
    notice.announce("");
    void names.load(api, () => model.changed()).catch(failed);
    const watch = new ResizeObserver(() => stage.resize());
    watch.observe(stage.box);
    watch.observe(stage.element);
    const stop = onThemeChange(() => stage.recolor());
    Object.assign(stage.element, { rankscopeStats: () => stage.stats() });
    context.onPlace((place) => { this.#apply(readAddress(place.params), false); void walk.show(place.params); });
    void walk.show(context.place.params);
    this.#ending = () => {
      clearTimeout(this.#later);
      watch.disconnect();
      stop();
      for (const part of [notice, permalink, stage, loader, names, counters, minimap, path, this.#input]) part.end();
    };
  }

  /** The findings: marked next to their ranks, and to jump to; among many ranks the stragglers are pinned. More arrive while the server works. */
  findings(all: readonly Finding[], stragglers: readonly number[]): void {
    const model = this.#model;
    const pins = new Set(model.groupAtFirst === "" ? [] : stragglers.filter((rank) => rankIndex(model.layout, rank) >= 0).slice(0, MOST_PINS));
    if (!this.#pinsChosen && sameNumbers(model.pinned.ranks, model.pinnedAtFirst)) replaced(model.pinned.ranks, pins);
    model.pinnedAtFirst = pins;
    this.#bar.findings(all);
    this.#selection.findings = all;
    model.marks = marksOf(all);
    model.refold();
  }

  /** Stops all that runs; the address is left true to the last view. */
  end(): void {
    this.#ending();
  }

  #apply(address: Address, first: boolean): void {
    const model = this.#model;
    model.open = new Set(address.open ?? model.openAtFirst);
    model.tracks = new Set(address.tracks);
    model.filter = address.filter;
    model.query = address.query;
    model.showCounters = address.counters;
    this.#pinsChosen = address.pinned.ranks !== null;
    replaced(model.pinned.ranks, address.pinned.ranks ?? model.pinnedAtFirst);
    replaced(model.pinned.tracks, address.pinned.tracks);
    for (const of of ["ranks", "tracks"] as const) replaced(model.hidden[of], address.hidden[of]);
    replaced(model.minor, address.minor);
    model.flags = address.flags;
    model.nameTracks = address.nameTracks;
    model.pathOf = address.path;
    model.openGroups = new Set(address.openGroups);
    const groupBy = address.groupBy ?? model.groupAtFirst;
    if (model.order !== address.order || model.groupBy !== groupBy) {
      void this.#arrange(address.order, groupBy).then(() => { // the rows have moved below what was scrolled to
        const { at, rank } = address;
        if (at) this.#jump.scrollToRank(at.rank, at.by);
        else if (rank !== null && rankIndex(model.layout, rank) >= 0) this.#jump.scrollToRank(rank);
      });
    }
    model.jumped = null;
    this.#bar.filter.value = address.filter;
    this.#bar.search.value = address.query;
    model.window = address.window ? clamped(address.window, model.layout.span) : model.firstWindow;
    model.measured = address.measured;
    model.calls = address.calls;
    model.refold();
    const { at } = address;
    if (at) requestAnimationFrame(() => this.#jump.scrollToRank(at.rank, at.by));
    else if (!first) this.#stage.box.scrollTop = 0;
    this.#notice.left();
    this.#applyNamed(address);
    // A link to the calls of a step names no range: the step is the range.
    if (address.calls && !model.measured && address.step !== null) model.measured = stepRange(model.layout, address.step, address.rank);
    if (address.range) this.#showGap(address.range);
    if (address.event) void this.#selectEvent(address.event, address.window === null).then(() => this.#trackOf(address));
    else if (address.name !== "") void this.#selectNamed(address).then(() => this.#trackOf(address));
    else if (!address.selected) this.#selection.clear({ history: false });
    else if (model.selected?.lane !== address.selected.lane || model.selected.row !== address.selected.row) void this.#selection.select(address.selected, { history: false, show: address.window === null });
    if (model.measured) void this.#measured.show(model.measured, { history: false });
    else this.#measured.clear();
  }

  /** The event of a finding, in the window that the address names, or of a table's row. */
  async #selectEvent(event: EventTime, show: boolean): Promise<void> {
    const place = await findEvent(this.#model.api, this.#model.layout, event).catch((error: unknown) => { this.#notice.say(error); return null; });
    if (place) await this.#selection.select(place, { history: false, show });
    else this.#notice.tell("The event is not in this timeline.", "A report may leave it out; its time range is shown.");
  }

  /** A stretch of a rank's time, measured, with what comes before and after it. */
  #showGap({ start, end }: EventTime): void {
    const model = this.#model;
    model.measured = { from: start, to: Math.max(end, start + 1) };
    model.show(around(start, Math.max(end, start + 1), model.layout.span, 1));
  }

  /** The events with the selected one's name become a track, where the address asks for it. */
  #trackOf({ track }: Address): void {
    const { detail, nameTracks } = this.#model;
    if (track && detail && !nameTracks.some(({ name }) => name === detail.name)) this.#selection.toggleTrack({ all: false });
  }

  /** What ran in a step of a rank, compared with the mean of the other ranks. */
  #compare(rank: number, step: number): void {
    const model = this.#model;
    const range = stepRange(model.layout, step, rank);
    if (!range) return this.#notice.tell(`There is no step ${step} on rank ${rank}.`, "The Step menu lists the recorded steps.");
    model.calls = { ...FIRST, rank, against: model.layout.ranks.length > 1 ? "others" : null };
    void this.#measured.show(range);
  }

  /** The first event of a name in the window; the keys [ and ] lead on from it. */
  async #selectNamed({ name, rank }: Address): Promise<void> {
    const { api, window, layout } = this.#model;
    try {
      const found = await findFrom(api, layout.span, { q: slashed(name) ?? exactly(name), match: "regex", ...(rank === null ? {} : { rank }) }, "next", { after: Math.floor(Math.max(-1, window.from - 1)) });
      if (found.hit) await this.#selection.select(found.hit, { history: false, show: true });
      else this.#notice.tell("No event of this name is in this timeline.", "A report leaves events out; `rankscope serve` has them all.");
    } catch (error) {
      this.#notice.say(error);
    }
  }

  /** The ranks' rows in another order or in groups, by values that are fetched first, or once the server has computed them. */
  async #arrange(order: Order, groupBy: string): Promise<void> {
    const model = this.#model;
    model.order = order;
    model.groupBy = groupings(model.layout).some(({ value }) => value === groupBy) ? groupBy : "";
    if (model.heat === null && (order === "late" || groupBy !== "")) {
      try {
        model.heat = await model.api.json<Heat>("heat");
      } catch (error) {
        if (error instanceof ApiError && error.status === 409) this.#later = window.setTimeout(() => void this.#arrange(model.order, model.groupBy), AGAIN_MS);
        else this.#notice.say(error);
      }
    }
    model.refold();
  }

  /** A rank or a step that the address names: other views lead here so. */
  #applyNamed({ rank, step }: Address): void {
    const model = this.#model;
    if (rank !== null && rankIndex(model.layout, rank) < 0) this.#notice.tell(`There is no rank ${rank}.`, "The Rank menu lists the ranks of this run.");
    else if (rank !== null) {
      if (model.layout.ranks.length > 1) model.open.add(rank);
      model.refold();
      requestAnimationFrame(() => this.#jump.scrollToRank(rank));
    }
    if (step === null) return;
    const window = stepWindow(model.layout, step, rank);
    if (window) model.show(window);
    else this.#notice.tell(`There is no step ${step}${rank === null ? "" : ` on rank ${rank}`}.`, "Showing the entire run. The Step menu lists the recorded steps.");
  }

  #onRow(what: string, act: (row: string) => void): void {
    const row = this.#rowActions.current();
    if (row) act(row);
    else this.#notice.hint(`To ${what} a rank or lane, select an event of it or go to its name with Tab.`);
  }

  #key(event: KeyboardEvent): boolean {
    const act = this.#act(event.key.length === 1 ? event.key.toLowerCase() : event.key, event.shiftKey);
    act?.();
    return act !== null;
  }

  #act(key: string, shift: boolean): (() => void) | null {
    const [model, selection, jump] = [this.#model, this.#selection, this.#jump];
    switch (key) {
      case ",": return () => selection.along(-1);
      case ".": return () => selection.along(1);
      case "j": return () => void selection.across(1);
      case "k": return () => void selection.across(-1);
      case "e": return () => void selection.across(0);
      case "f": return () => selection.zoomTo();
      case "0": case "Home": return () => jump.toWindow(whole(model.layout.span));
      case "/": return () => this.#bar.search.focus();
      case "n": return () => (model.query === "" ? this.#notice.hint("Type a name to find first: key /.") : void this.#search.find(model.query, shift ? "previous" : "next"));
      case "c": return () => this.#path.toggle();
      case "[": return () => void selection.alike("previous");
      case "]": return () => void selection.alike("next");
      case "{": return () => jump.byStep(-1);
      case "}": return () => jump.byStep(1);
      case "t": return () => selection.toggleTrack({ all: shift });
      case "?": return () => this.#help.toggle();
      case "p": return () => this.#onRow("pin", (row) => this.#rowActions.pin(row));
      case "h": return () => this.#onRow("hide", (row) => this.#rowActions.hideRow(row));
      case "m": return shift ? () => this.#flags.open(Math.round(model.detail?.start_ns ?? (model.window.from + model.window.to) / 2)) : () => void this.#measured.show(model.detail ? { from: model.detail.start_ns, to: model.detail.end_ns } : model.window);
      case "Enter": return () => (model.detail ? selection.enter() : void selection.across(0));
      case "Escape": return () => (model.measured ? this.#measured.close() : selection.clear({ history: true }));
      default: return null;
    }
  }
}

function replaced(values: Set<number>, by: ReadonlySet<number>): void {
  values.clear();
  for (const value of by) values.add(value);
}

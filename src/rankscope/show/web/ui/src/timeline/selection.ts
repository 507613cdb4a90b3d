/** The selected event: found under a point or next to the last one, brought into sight, shown in the panel. */
import { h } from "../components/dom.ts";
import { ApiError } from "../data/api.ts";
import type { Finding } from "../data/payload.ts";
import { aroundList, eventsAround } from "./around.ts";
import { saidOf } from "./anchor.ts";
import { grouped } from "../format/units.ts";
import type { EventDetail } from "./detail.ts";
import { askedHit, hitAt, type Hit, type Part } from "./hit.ts";
import { rowUnder } from "./input.ts";
import { rankIndex, type Place } from "./layout.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import { ranksOfTrack, toggled } from "./name_tracks.ts";
import { detailPanel, spoken } from "./panel.ts";
import type { Permalink } from "./permalink.ts";
import type { Found } from "./search.ts";
import { screenTop, standIn } from "./rows.ts";
import { RULER } from "./frame.ts";
import type { Stage } from "./stage.ts";
import { around, panned, type Window } from "./window.ts";

const REACH_PX = 5;

export interface SelectionActs {
  find(name: string): void;
  measure(window: Window): void;
  /** What ran in a step of a rank. */
  step(rank: number, step: number): void;
  /** The panel next to the picture comes or goes. */
  panel(shown: boolean): void;
}

export class Selection {
  readonly element = h("div", { class: "tl-side" });
  /** What was found: an event that one of them leads to says why. */
  findings: readonly Finding[] = [];
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #permalink: Permalink;
  readonly #notice: Notice;
  readonly #acts: SelectionActs;
  #asked = 0;

  constructor(model: Model, stage: Stage, permalink: Permalink, notice: Notice, acts: SelectionActs) {
    this.#model = model;
    this.#stage = stage;
    this.#permalink = permalink;
    this.#notice = notice;
    this.#acts = acts;
  }

  async pick(x: number, y: number): Promise<void> {
    const asked = ++this.#asked;
    const hit = await this.#exactly(x, y).catch((error: unknown) => { this.#notice.say(error); return null; });
    if (asked !== this.#asked) return;
    if (hit) void this.select(hit);
    else if (y >= RULER) this.clear({ history: true });
  }

  /** What is drawn under a point, as far as the tiles at hand tell. */
  under(x: number, y: number): Hit | null {
    const frame = this.#stage.frame;
    const point = this.#point(x, y);
    return frame && point ? hitAt(frame.scene, point.lane, point.at, REACH_PX * point.perPixel, point.part) : null;
  }

  async select(place: Place, { history = true, show = false }: { history?: boolean; show?: boolean } = {}): Promise<void> {
    const asked = ++this.#asked;
    const model = this.#model;
    let detail: EventDetail;
    try {
      detail = await model.api.json<EventDetail>(...model.nameLanes.event(place));
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        if (history) this.#notice.hint("No more events in this lane.");
        else this.#notice.tell("The event in the link does not exist.", "The link may belong to another run. Its time range is shown.");
      }
      else this.#notice.say(error);
      return;
    }
    if (asked !== this.#asked) return;
    model.selected = { lane: detail.lane, row: detail.row };
    model.detail = detail;
    // Where the track of its name shows it, nothing has to be opened.
    const inView = !show && model.rowInNameTrack(detail) >= 0;
    if (!inView) model.reveal(detail.lane);
    this.#bring(detail, show, !inView);
    const had = this.element.contains(document.activeElement);
    const said = saidOf(this.findings, detail);
    const reasons = said.map(({ reason }) => reason);
    model.said = said;
    this.element.replaceChildren(detailPanel(model, detail, reasons, {
      select: (to) => void this.select(to), zoomTo: () => this.zoomTo(), close: () => { this.clear({ history: true }); this.#stage.element.focus({ preventScroll: true }); },
      find: this.#acts.find, track: (all) => this.toggleTrack({ all }), measure: () => this.#acts.measure({ from: detail.start_ns, to: Math.max(detail.end_ns, detail.start_ns + 1) }),
      step: () => { if (detail.step !== null) this.#acts.step(detail.rank, detail.step); },
    }));
    this.element.dispatchEvent(new Event("filled"));
    void this.#around(detail, asked);
    this.#acts.panel(true);
    if (had) this.enter();
    this.#notice.announce([...reasons.map((reason) => `${reason}.`), spoken(model, detail)].join(" "));
    model.changed();
    if (history) this.#permalink.push();
  }

  /** What was open on the host, below what is known at once. */
  async #around(detail: EventDetail, asked: number): Promise<void> {
    const found = await eventsAround(this.#model, detail).catch((error: unknown) => { this.#notice.say(error); return null; });
    const list = found && asked === this.#asked ? aroundList(found, (to) => void this.select(to)) : null;
    if (list) this.element.querySelector(".tl-around")?.replaceChildren(list);
  }

  clear({ history }: { history: boolean }): void {
    this.#asked++;
    const had = this.#model.selected !== null;
    this.#model.selected = null;
    this.#model.detail = null;
    this.#model.said = [];
    this.element.replaceChildren();
    this.#acts.panel(false);
    this.#model.changed();
    if (had && history) this.#permalink.push();
  }

  /** The keyboard goes into the panel. */
  enter(): void {
    this.element.querySelector<HTMLElement>("button")?.focus({ preventScroll: true });
  }

  zoomTo(): void {
    const { detail, layout } = this.#model;
    if (!detail) return this.#notice.hint("Select an event first: click one, or press E.");
    this.#model.reveal(detail.lane);
    this.#stage.scrollToRow(standIn(layout, this.#model.rows, detail.lane));
    this.#permalink.go(around(detail.start_ns, detail.end_ns, layout.span, 0.6));
  }

  /** The event before or after on its lane; where none is selected, one in the middle of the view. */
  along(by: number): void {
    const { selected } = this.#model;
    if (selected) void this.select({ lane: selected.lane, row: selected.row + by });
    else void this.across(0);
  }

  /** All events with the selected one's name become a track, of all ranks or of its own and the pinned ones; or no longer. */
  toggleTrack({ all }: { all: boolean }): void {
    const model = this.#model;
    const { detail, layout } = model;
    if (!detail) return this.#notice.hint("Select an event first: click one, or press E.");
    model.setNameTracks(toggled(model.nameTracks, { name: detail.name, ranks: all ? null : ranksOfTrack(layout, detail.rank, model.pinned.ranks) }));
    this.#permalink.push();
    this.#notice.hint(model.nameTracks.some(({ name }) => name === detail.name) ? "All events with this name are pinned to the top as a track." : "The track was removed.");
  }

  /** The next or previous event of the same name on the same rank. */
  async alike(direction: "next" | "previous"): Promise<void> {
    const { detail, api, layout } = this.#model;
    if (!detail) return this.across(0);
    const { rank, start_ns: after, end_ns } = detail;
    const from = ({ lane, row }: Place): Promise<Found> => api.json<Found>("search", { match: "name", lane, row, rank, after, direction });
    try {
      const first = await from(detail);
      // From a rank's summary, the first is the event itself in its own lane.
      const itself = first.hit?.lane !== detail.lane && first.hit?.start_ns === after && first.hit.end_ns === end_ns && layout.tracks[layout.laneTrack[detail.lane] ?? 0]?.kind === "rank";
      const { hit, hits, index } = first.hit && itself ? await from(first.hit) : first;
      if (!hit) return this.#notice.hint(`No ${direction} event with this name on rank ${rank}.`);
      await this.select(hit);
      this.#notice.hint(`${grouped(index + 1)} of ${grouped(hits)} events with this name on rank ${rank}.`);
    } catch (error) {
      this.#notice.say(error);
    }
  }

  /** Selects on another lane what runs when the selected event does; without a selection, in the middle of the row that `#start` gives. */
  async across(by: number): Promise<void> {
    const { rows, selected, detail, window, layout, api, nameLanes } = this.#model;
    const at = detail ? (detail.start_ns + detail.end_ns) / 2 : (window.from + window.to) / 2;
    const first = selected ? standIn(layout, rows, selected.lane) + by : this.#start();
    const [down, up] = [Array.from({ length: Math.max(0, rows.length - first) }, (_, i) => first + i), Array.from({ length: Math.max(0, first) }, (_, i) => first - 1 - i)];
    for (const row of selected ? (by < 0 ? [first, ...up] : down) : [...down, ...up]) {
      const lane = rows.lane[row] ?? -1;
      if (lane < 0) continue;
      // The server takes whole nanoseconds; what touches the instant comes first, else what follows it.
      const [address, which] = nameLanes.request("events", [lane]);
      const file = await api.columns(address, { ...which, from: Math.max(0, Math.floor(at)), to: Math.ceil(window.to), limit: 1 }).catch((error: unknown) => { this.#notice.say(error); return null; });
      const next = file?.u32("row")[0];
      if (next !== undefined) return this.select({ lane, row: next });
      if (!file) return;
    }
    this.#notice.hint(selected ? "No other lane has an event here." : "No lane has an event at or after the middle of this window.");
  }

  /** The row of the name that has the focus, else of the rank that was jumped to, else pinned at the top, else the one in the middle of those in view. */
  #start(): number {
    const { rows, layout, jumped } = this.#model;
    const frame = this.#stage.frame;
    if (!frame) return 0;
    const name = document.activeElement instanceof HTMLElement ? /^([rt])(\d{1,9})$/.exec(document.activeElement.dataset["row"] ?? "") : null;
    const number = Number(name?.[2]);
    const focused = !name ? -1 : name[1] === "r" ? rows.rowOfRank[rankIndex(layout, number)] ?? -1 : standIn(layout, rows, layout.tracks[number]?.firstLane ?? -1);
    if (focused >= 0) return focused;
    const asked = jumped === null ? -1 : rows.rowOfRank[jumped] ?? -1;
    if (asked >= 0 && (asked < rows.pinned || (asked >= frame.first && asked < frame.last))) return asked;
    return rows.pinned > 0 ? 0 : (frame.first + Math.max(frame.first, frame.last - 1)) >> 1;
  }

  /** As `under`; where the bin there names an event of the row's other part, or one that may be, the server is asked for the events. */
  async #exactly(x: number, y: number): Promise<Hit | null> {
    const hit = this.under(x, y);
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
    const left = this.#stage.leftOut(row, y - RULER - screenTop(rows, row, this.#stage.box.scrollTop));
    return { lane, at: window.from + x * perPixel, perPixel, part: left && { left, known: names.known } };
  }

  /** Moves the view no more than is needed to see an event. */
  #bring(detail: EventDetail, zoom: boolean, scroll: boolean): void {
    const model = this.#model;
    const { window, layout, width } = model;
    const perPixel = (window.to - window.from) / width;
    if (zoom && (detail.end_ns - detail.start_ns) / perPixel < 8) model.window = around(detail.start_ns, detail.end_ns, layout.span, 6);
    else if (detail.end_ns < window.from + 10 * perPixel || detail.start_ns > window.to - 10 * perPixel) {
      model.window = panned(window, (detail.start_ns + detail.end_ns) / 2 - (window.from + window.to) / 2, layout.span);
    }
    const row = standIn(layout, model.rows, detail.lane);
    if (row >= 0 && scroll) this.#stage.scrollToRow(row);
  }
}

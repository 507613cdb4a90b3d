/** The facts of the event under the pointer: at once what the picture knows, and the rest when the pointer rests. */
import { h, named, styled } from "../components/dom.ts";
import { inputsText } from "../format/shapes.ts";
import { foldedName } from "../format/short_name.ts";
import { shownName } from "../format/text.ts";
import { formatDuration, formatMoment, grouped } from "../format/units.ts";
import { isAbort } from "../data/api.ts";
import type { EventDetail } from "./detail.ts";
import type { Hit } from "./hit.ts";
import { laneTitle } from "./layout.ts";
import { ranges } from "./lists.ts";
import type { Model } from "./model.ts";
import type { Stage } from "./stage.ts";

const REST_MS = 120;
const GAP_PX = 14;
const MOST_CHILDREN = 5000;

interface Rest { readonly detail: EventDetail; readonly self: number | null }

export class Tip {
  readonly element = h("div", { class: "tl-tip", hidden: true, "aria-hidden": "true", "data-testid": "tip" });
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #under: (x: number, y: number) => Hit | null;
  /** The pointer in the window's pixels; null while it is elsewhere or drags. */
  #pointer: { x: number; y: number } | null = null;
  #frame = 0;
  #shown = "";
  #waiting = 0;
  #asking: AbortController | null = null;

  constructor(model: Model, stage: Stage, under: (x: number, y: number) => Hit | null) {
    this.#model = model;
    this.#stage = stage;
    this.#under = under;
    // The layout may change below a pointer that rests.
    stage.afterFrame(() => { if (this.#pointer) this.#look(this.#pointer); });
  }

  move(x: number, y: number): void {
    this.#pointer = { x, y };
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.#pointer) this.#look(this.#pointer);
    });
  }

  leave(): void {
    this.#pointer = null;
    this.#hide();
  }

  #hide(): void {
    this.element.hidden = true;
    this.#shown = "";
    this.#forget();
    this.#stage.element.classList.remove("over");
  }

  #forget(): void {
    clearTimeout(this.#waiting);
    this.#asking?.abort();
    this.#asking = null;
  }

  #look({ x, y }: { x: number; y: number }): void {
    const corner = this.#stage.element.getBoundingClientRect();
    const inside = x >= corner.left && x < corner.right && y >= corner.top && y < corner.bottom;
    const hit = inside ? this.#under(x - corner.left, y - corner.top) : null;
    const name = hit ? this.#model.names.get(hit.name) : undefined;
    if (!hit || name === undefined) return this.#hide();
    const shown = `${hit.lane}.${hit.row}.${hit.start === null}`;
    if (shown !== this.#shown) {
      this.#forget();
      this.#shown = shown;
      this.#stage.element.classList.add("over");
      this.#fill(hit, name, null);
      this.#waiting = window.setTimeout(() => void this.#ask(hit, name), REST_MS);
    }
    this.#place(x, y);
  }

  #fill(hit: Hit, name: string, rest: Rest | null): void {
    const [start, end] = rest ? [rest.detail.start_ns, rest.detail.end_ns] : [hit.start, hit.end];
    const fact = (label: string, value: string | null | undefined): HTMLElement | null => (value ? h("div", {}, h("dt", {}, label), h("dd", {}, value)) : null);
    const lane = rest?.detail.lane ?? hit.lane;
    const own = this.#model.nameLanes.of(lane);
    this.element.replaceChildren(h("strong", {}, named(foldedName(name), 160)),
      hit.count > 1 ? h("span", {}, `${grouped(hit.count)} events start in this pixel; this is the longest`) : "",
      h("dl", {}, fact("Start", start === null ? null : formatMoment(start)), fact("Duration", start === null || end === null ? null : formatDuration(end - start)),
        fact("Self time", rest?.self === null || rest === null ? null : formatDuration(rest.self)), fact("Lane", own ? `rank ${own.rank}` : shownName(laneTitle(this.#model.layout, lane), 80)),
        fact("Inputs", rest?.detail.shapes ? shownName(inputsText(rest.detail.shapes), 160) : null)));
    this.element.hidden = false;
  }

  async #ask(hit: Hit, name: string): Promise<void> {
    const asking = this.#asking = new AbortController();
    try {
      const detail = await this.#model.api.json<EventDetail>(...this.#model.nameLanes.event(hit), asking.signal);
      const self = await selfTime(this.#model, detail, asking.signal);
      if (this.#asking !== asking || !this.#pointer) return;
      this.#fill(hit, name, { detail, self });
      this.#place(this.#pointer.x, this.#pointer.y);
    } catch (error) {
      if (!isAbort(error)) this.#asking = null; // the tooltip keeps what it has; a click will say what is wrong
    }
  }

  /** At the pointer, on the side where there is room. */
  #place(x: number, y: number): void {
    const { width, height } = this.element.getBoundingClientRect();
    const left = x + GAP_PX + width <= innerWidth ? x + GAP_PX : Math.max(4, x - GAP_PX - width);
    const top = y + GAP_PX + height <= innerHeight ? y + GAP_PX : Math.max(4, y - GAP_PX - height);
    styled(this.element, { left: `${Math.round(left)}px`, top: `${Math.round(top)}px` });
  }
}

/** The time of a host event in which none of its children runs; null on a device, or where there are too many children. */
async function selfTime({ api, layout }: Model, detail: EventDetail, signal: AbortSignal): Promise<number | null> {
  const track = layout.tracks[layout.laneTrack[detail.lane] ?? 0];
  if (!track || (track.kind !== "thread" && track.kind !== "python")) return null;
  const depth = (layout.laneDepth[detail.lane] ?? 0) + 1;
  const lanes = Array.from({ length: track.lanes }, (_, i) => track.firstLane + i).filter((lane) => layout.laneDepth[lane] === depth);
  if (lanes.length === 0) return detail.end_ns - detail.start_ns;
  const file = await api.columns("events", { lanes: ranges(lanes), from: Math.max(0, Math.floor(detail.start_ns)), to: Math.ceil(detail.end_ns), limit: MOST_CHILDREN }, signal);
  return file.meta["more"] ? null : uncovered(detail.start_ns, detail.end_ns, file.f64("start_ns"), file.f64("end_ns"));
}

/** How much of a stretch no interval covers. */
export function uncovered(start: number, end: number, starts: ArrayLike<number>, ends: ArrayLike<number>): number {
  const order = Array.from(starts, (_, i) => i).sort((a, b) => starts[a]! - starts[b]!);
  let free = 0;
  let at = start;
  for (const i of order) {
    free += Math.max(0, Math.min(starts[i]!, end) - at);
    at = Math.max(at, Math.min(ends[i]!, end));
  }
  return free + Math.max(0, end - at);
}

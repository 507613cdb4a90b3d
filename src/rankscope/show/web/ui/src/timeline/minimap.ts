/** The whole run in one strip: how busy the ranks are on average, by category, and which part is visible. */
import { h, styled } from "../components/dom.ts";
import { onThemeChange } from "../theme/theme.ts";
import { categoryVariable } from "../theme/categories.ts";
import { color } from "../theme/theme.ts";
import { isAbort } from "../data/api.ts";
import type { ColumnFile } from "../data/column_file.ts";
import { ranges } from "./lists.ts";
import type { Layout } from "./layout.ts";
import type { Model } from "./model.ts";
import { TILE_BINS } from "./tiles.ts";
import { clamped, whole, type Window } from "./window.ts";

/** Of more ranks than this, evenly spread ones are shown. */
const MOST_RANKS = 64;
const HEIGHT = 26;
const NARROWEST_PX = 6;

export class Minimap {
  readonly element: HTMLElement;
  readonly #model: Model;
  readonly #canvas = h("canvas", { "aria-hidden": "true" });
  readonly #view = h("div", { class: "tl-map-view" });
  readonly #moved: () => void;
  #busy: Float64Array | null = null;
  #width = 0;
  readonly #stop: () => void;
  readonly #abort = new AbortController();

  /** `moved` is called when the reader has moved the view here. */
  constructor(model: Model, moved: () => void) {
    this.#model = model;
    this.#moved = moved;
    const area = h("div", { class: "tl-map-area" }, this.#canvas, this.#view);
    this.element = h("div", { class: "tl-map", role: "img", "aria-label": "Overview of the run; the framed part is visible", title: "The whole run: drag to move the visible part, double-click to show all", "data-testid": "minimap" }, area);
    let grabbed: number | null = null;
    const at = (event: PointerEvent | MouseEvent): number => {
      const box = area.getBoundingClientRect();
      const all = whole(model.layout.span);
      return all.from + ((event.clientX - box.left) / Math.max(1, box.width)) * (all.to - all.from);
    };
    const go = (middle: number): void => {
      const length = model.window.to - model.window.from;
      model.show(clamped({ from: middle - length / 2, to: middle + length / 2 }, model.layout.span));
      moved();
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      area.setPointerCapture(event.pointerId);
      const { from, to } = model.window;
      const instant = at(event);
      const inside = instant >= from && instant <= to;
      grabbed = inside ? instant - (from + to) / 2 : 0;
      if (!inside) go(instant);
    });
    area.addEventListener("pointermove", (event) => { if (grabbed !== null) go(at(event) - grabbed); });
    for (const kind of ["pointerup", "pointercancel"]) area.addEventListener(kind, () => { grabbed = null; });
    area.addEventListener("dblclick", () => { model.show(whole(model.layout.span)); this.#moved(); });
    this.#stop = onThemeChange(() => this.#paint());
    void this.#load();
  }

  end(): void {
    this.#stop();
    this.#abort.abort();
  }

  /** After every frame: the frame around what is visible, and the strip where its width has changed. */
  draw(): void {
    const { window, layout, width } = this.#model;
    const { left, wide } = framed(window, whole(layout.span), width);
    styled(this.#view, { left: `${left.toFixed(1)}px`, width: `${wide.toFixed(1)}px` });
    if (width === this.#width) return;
    this.#width = width;
    this.#paint();
  }

  async #load(): Promise<void> {
    const { api, layout } = this.#model;
    let level = 0;
    while (level < layout.levels - 1 && TILE_BINS * layout.baseBin * layout.factor ** level < layout.span) level++;
    const lanes = summaryLanes(layout, MOST_RANKS);
    if (lanes.length === 0) return;
    try {
      const file = await api.columns("tiles", { level, first: 0, bins: TILE_BINS, lanes: ranges(lanes) }, this.#abort.signal);
      const all = whole(layout.span);
      this.#busy = shares(file, layout.baseBin * layout.factor ** level, lanes.length, layout.categories.length, all);
      this.#paint();
    } catch (error) {
      if (!isAbort(error)) this.element.hidden = true; // the rows say what is wrong
    }
  }

  #paint(): void {
    const ratio = Math.min(2, globalThis.devicePixelRatio || 1);
    const c = this.#canvas.getContext("2d");
    if (!c || this.#width === 0) return;
    this.#canvas.width = Math.round(this.#width * ratio);
    this.#canvas.height = Math.round(HEIGHT * ratio);
    styled(this.#canvas, { width: `${this.#width}px` });
    if (!this.#busy) return;
    const { categories } = this.#model.layout;
    const inks = categories.map(({ category }) => color(categoryVariable(category)));
    const [wide, tall] = [this.#canvas.width / COLUMNS, this.#canvas.height];
    for (let column = 0; column < COLUMNS; column++) {
      let y = tall;
      for (let category = 0; category < categories.length; category++) {
        const share = this.#busy[column * categories.length + category]!;
        if (share <= 0) continue;
        const height = Math.min(y, share * tall);
        c.fillStyle = inks[category]!;
        c.fillRect(Math.floor(column * wide), y - height, Math.ceil(wide), height);
        y -= height;
      }
    }
  }
}

/** Columns of the strip, whatever its width. */
export const COLUMNS = 512;

/** The summary lanes of the ranks, or of `most` of them, evenly spread. */
export function summaryLanes(layout: Layout, most: number): number[] {
  const lanes = layout.tracks.filter((track) => track.kind === "rank" && track.lanes > 0).map((track) => track.firstLane);
  if (lanes.length <= most) return lanes;
  return Array.from({ length: most }, (_, i) => lanes[Math.floor((i * lanes.length) / most)]!);
}

/** By column of the strip and category: the mean share of the ranks' time in which it is busy. */
export function shares(file: ColumnFile, binWidth: number, ranks: number, categories: number, all: Window): Float64Array {
  const [bins, kinds, busy] = [file.u32("busy_bin"), file.u8("busy_category"), file.f64("busy_ns")];
  const found = new Float64Array(COLUMNS * categories);
  const column = (all.to - all.from) / COLUMNS;
  for (let i = 0; i < bins.length; i++) {
    // A bin's busy time, spread evenly over the columns that it touches.
    const [from, to] = [(bins[i]! * binWidth - all.from) / column, ((bins[i]! + 1) * binWidth - all.from) / column];
    for (let at = Math.max(0, Math.floor(from)); at < Math.min(COLUMNS, to); at++) {
      const part = Math.min(to, at + 1) - Math.max(from, at);
      found[at * categories + kinds[i]!]! += (busy[i]! * part) / (to - from) / column / ranks;
    }
  }
  return found;
}

/** Where the frame of what is visible is, never too narrow to be grasped. */
export function framed(window: Window, all: Window, width: number): { left: number; wide: number } {
  const scale = width / (all.to - all.from);
  const wide = Math.min(width, Math.max(NARROWEST_PX, (window.to - window.from) * scale));
  const left = ((window.from + window.to) / 2 - all.from) * scale - wide / 2;
  return { left: Math.min(Math.max(0, left), width - wide), wide };
}

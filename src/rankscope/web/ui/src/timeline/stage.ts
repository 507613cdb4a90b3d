/** The picture: two canvases, one frame at a time. Rectangles are pixels (raster.ts), words and lines lie above (labels.ts). */
import { h, styled } from "../components/dom.ts";
import { CATEGORIES, categoryVariable, type Category } from "../theme/categories.ts";
import { color } from "../theme/theme.ts";
import { drawLane, type Scene } from "./draw.ts";
import { Labels, type Palette } from "./labels.ts";
import { rankIndex } from "./layout.ts";
import type { Loader } from "./loader.ts";
import type { Model } from "./model.ts";
import { Raster, type Ink } from "./raster.ts";
import { firstRowAt, RowKind, upperPart } from "./rows.ts";
import { levelFor } from "./window.ts";

/** The ruler above the rows. */
export const RULER = 44;
const BELOW = 24;
/** Moving data: what computing should hide. Only these are drawn with their patterns: host lanes are told apart by where they stand. */
export const MOVING: ReadonlySet<Category> = new Set(["communication", "memory", "memset"]);

export interface Frame {
  readonly scene: Scene;
  readonly scroll: number;
  readonly first: number;
  readonly last: number;
}

export class Stage {
  /** Takes the keyboard and the pointer. */
  readonly element: HTMLElement;
  /** Scrolls; holds the gutter's rows and, stuck to its top, the stage. */
  readonly box: HTMLElement;
  readonly space: HTMLElement;
  frame: Frame | null = null;
  readonly #model: Model;
  readonly #loader: Loader;
  readonly #pixels = h("canvas", { class: "tl-pixels", "aria-hidden": "true" });
  readonly #words = h("canvas", { class: "tl-words", "aria-hidden": "true" });
  readonly #labels: Labels;
  #raster: Raster | null = null;
  #image: ImageData | null = null;
  #palette: Palette | null = null;
  #asked = 0;
  #times = new Float64Array(240);
  #frames = 0;
  /** Categories left out of the upper part of a split row, and of the lower. */
  readonly #moving: Uint8Array;
  readonly #computing: Uint8Array;
  #complete = false;
  #ended = false;
  readonly #after = new Set<() => void>();

  constructor(model: Model, loader: Loader, gutter: HTMLElement, corner: HTMLElement, describedBy: string) {
    this.#model = model;
    this.#loader = loader;
    this.#moving = Uint8Array.from(model.layout.categories, ({ category }) => (MOVING.has(category) ? 1 : 0));
    this.#computing = this.#moving.map((is) => 1 - is);
    this.element = h("div", {
      class: "tl-stage", tabindex: "0", role: "application", "aria-label": `Timeline of ${model.layout.ranks.length} ranks`, "aria-describedby": describedBy, "data-testid": "timeline-stage",
    }, this.#pixels, this.#words);
    this.space = h("div", { class: "tl-space" }, corner, gutter, this.element);
    this.box = h("div", { class: "tl-box", scroll: () => this.request() }, this.space);
    this.#labels = new Labels(model, this.#words);
    loader.rested = () => this.#settle(this.#complete && this.#asked === 0);
    model.onDraw(() => this.request());
    model.onFold(() => this.#fit());
  }

  /** Called after every frame. */
  afterFrame(then: () => void): void {
    this.#after.add(then);
  }

  resize(): void {
    const width = Math.round(this.element.clientWidth);
    const height = Math.round(this.box.clientHeight);
    if (width === 0 || height === 0) return;
    const model = this.#model;
    const ratio = Math.min(2, globalThis.devicePixelRatio || 1);
    model.width = width;
    model.height = height - RULER;
    styled(this.element, { height: `${height}px` });
    for (const canvas of [this.#pixels, this.#words]) {
      const tall = canvas === this.#pixels ? height - RULER : height;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.max(1, Math.round(tall * ratio));
      styled(canvas, { width: `${width}px`, height: `${tall}px` });
    }
    this.recolour();
    model.refold();
  }

  /** The colours changed, or the size: what was made for the old ones is made anew. */
  recolour(): void {
    const model = this.#model;
    const palette = paletteOf(model);
    this.#palette = palette;
    this.#raster = new Raster(Math.max(1, this.#pixels.width), Math.max(1, this.#pixels.height), palette.inks, model.layout.categories.map(({ category }) => (MOVING.has(category) ? CATEGORIES[category].pattern : "none")));
    this.#image = new ImageData(this.#raster.bytes, this.#raster.width, this.#raster.height);
    this.request();
  }

  request(): void {
    if (this.#asked === 0 && !this.#ended) this.#asked = requestAnimationFrame(() => this.#paint());
  }

  end(): void {
    this.#ended = true;
    cancelAnimationFrame(this.#asked);
  }

  /** How far down the rows are scrolled: the rank at the top and the pixels of it that are above; null at the very top. */
  topRank(): { rank: number; by: number } | null {
    const { rows, layout } = this.#model;
    if (!this.frame || this.box.scrollTop < 4) return null;
    const kind = rows.kind[this.frame.first];
    const of = rows.of[this.frame.first] ?? 0;
    const rank = kind === RowKind.Rank || kind === RowKind.Counter ? layout.ranks[of]?.rank : layout.tracks[of]?.rank;
    if (rank === undefined) return null;
    return { rank, by: Math.max(0, Math.round(this.box.scrollTop - (rows.top[rows.rowOfRank[rankIndex(layout, rank)] ?? 0] ?? 0))) };
  }

  /** The categories that are not drawn at this height of a row, `y` pixels below its top; null where all are. */
  leftOut(row: number, y: number): Uint8Array | null {
    const upper = upperPart(this.#model.rows, row);
    return upper === 0 ? null : y < upper ? this.#moving : this.#computing;
  }

  /** Brings a row into sight. */
  scrollToRow(row: number): void {
    const { rows } = this.#model;
    const top = rows.top[row] ?? 0;
    const size = rows.size[row] ?? 0;
    if (top < this.box.scrollTop + 8 || top + size > this.box.scrollTop + this.#model.height - 8) this.box.scrollTop = Math.max(0, top - this.#model.height / 3);
    this.request();
  }

  #fit(): void {
    styled(this.space, { height: `${Math.max(this.box.clientHeight, RULER + this.#model.rows.height + BELOW)}px` });
  }

  #paint(): void {
    this.#asked = 0;
    const [raster, image, palette, model] = [this.#raster, this.#image, this.#palette, this.#model];
    if (!raster || !image || !palette || this.#ended) return;
    const scroll = this.box.scrollTop; // read before anything is written: no second layout in the frame
    const began = performance.now();
    const { rows, layout, cache, window } = model;
    const ratio = raster.width / model.width;
    const level = levelFor((window.to - window.from) / raster.width, layout.baseBin, layout.factor, layout.levels);
    const columns = cache.columnsOf(Math.max(level, -6), Math.max(0, window.from), Math.min(window.to, layout.span));
    const scene: Scene = { cache, window, width: raster.width, level: Math.max(level, -6), levels: layout.levels, columns };
    const first = firstRowAt(rows, scroll);
    const lanes: number[] = [];
    raster.clear(palette.page);
    let last = first;
    let complete = true;
    for (; last < rows.length && rows.top[last]! < scroll + model.height; last++) {
      const lane = rows.lane[last]!;
      if (lane < 0) continue;
      lanes.push(lane);
      const top = Math.round((rows.top[last]! - scroll) * ratio);
      const bottom = Math.round((rows.top[last]! + rows.size[last]! - scroll) * ratio);
      const ground = rows.kind[last] === RowKind.Rank ? palette.rankRow : palette.lane;
      const upper = Math.round(upperPart(rows, last) * ratio);
      raster.begin();
      if (!drawLane(raster, scene, lane)) complete = false;
      raster.finish(top, upper > 0 ? upper : Math.max(1, bottom - top), ground, palette.hatch, upper > 0 ? this.#moving : null);
      if (upper > 0) raster.finish(top + upper, bottom - top - upper, ground, palette.hatch, this.#computing);
    }
    for (const column of columns) cache.touch(column);
    this.#pixels.getContext("2d")?.putImageData(image, 0, 0);
    this.frame = { scene, scroll, first, last };
    this.#labels.draw(this.frame, palette, ratio);
    this.#times[this.#frames++ % this.#times.length] = performance.now() - began;
    this.#loader.want(scene, lanes.sort((a, b) => a - b));
    for (const tell of this.#after) tell();
    this.#complete = complete;
    if (!complete) this.#settle(false);
  }

  /** Says to tests and to assistive technology whether all that is in sight is drawn as it is. */
  #settle(settled: boolean): void {
    if (this.element.dataset["settled"] !== String(settled)) this.element.dataset["settled"] = String(settled);
  }

  /** Script time of the last frames in ms, and what the last one drew: for the benchmark. */
  stats(): { frames: number; median_ms: number; p95_ms: number; rectangles: number; tile_bytes: number } {
    const times = [...this.#times.subarray(0, Math.min(this.#frames, this.#times.length))].sort((a, b) => a - b);
    const at = (share: number): number => times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0;
    return { frames: this.#frames, median_ms: at(0.5), p95_ms: at(0.95), rectangles: this.#raster?.rectangles ?? 0, tile_bytes: this.#model.cache.bytes };
  }
}

function paletteOf(model: Model): Palette {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const ink = (text: string): Ink & { a: number } => {
    if (!probe) return { r: 128, g: 128, b: 128, a: 1 };
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    const [r = 0, g = 0, b = 0, a = 255] = probe.getImageData(0, 0, 1, 1).data;
    return { r, g, b, a: a / 255 };
  };
  const inks = model.layout.categories.map(({ category }) => ink(color(categoryVariable(category))));
  const hatch = ink(color("--hatch"));
  return {
    inks, hatch, page: ink(color("--page")), lane: ink(color("--surface")), rankRow: ink(color("--raised")),
    onInk: inks.map(({ r, g, b }) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff")),
    text: color("--text"), muted: color("--muted"), line: color("--line"), strong: color("--line-strong"), accent: color("--accent"), surface: color("--surface"),
    warning: color("--warning"), error: color("--error"), select: color("--select"),
  };
}

/** The picture: two canvases, one frame at a time. Rectangles are pixels (raster.ts), words and lines are above (labels.ts). */
import { h, styled } from "../components/dom.ts";
import { CATEGORIES, categoryVariable } from "../theme/categories.ts";
import { color } from "../theme/theme.ts";
import { drawLane, type Scene } from "./draw.ts";
import { MOVING, RULER, type Frame, type Palette } from "./frame.ts";
import { Labels } from "./labels.ts";
import { rankIndex, type RankRow } from "./layout.ts";
import type { Loader } from "./loader.ts";
import type { Model } from "./model.ts";
import { Raster, type Ink } from "./raster.ts";
import { firstScrolled, isOfRank, RowKind, upperPart, type Rows } from "./rows.ts";
import { levelFor, type Window } from "./window.ts";

const BELOW = 24;

/** What a picture was made from: if only the window has moved by whole pixels, it is moved instead of being redrawn. */
interface Shown {
  readonly window: Window;
  readonly rows: Rows;
  readonly scroll: number;
  readonly version: number;
}

/** Tolerance for moves by a whole number of pixels, in pixels. */
const WHOLE_PIXEL = 1e-4;

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
  /** What the pixels show now, where that is all that belongs there. */
  #shown: Shown | null = null;
  /** It was moved, not drawn, so that a share that is between two colors may have become the other one. */
  #carried = false;
  #visible = 0;
  readonly #rankOf: ReadonlyMap<number, RankRow>;
  #ended = false;
  readonly #after = new Set<() => void>();

  constructor(model: Model, loader: Loader, gutter: readonly HTMLElement[], corner: HTMLElement, describedBy: string) {
    this.#model = model;
    this.#loader = loader;
    this.#moving = Uint8Array.from(model.layout.categories, ({ category }) => (MOVING.has(category) ? 1 : 0));
    this.#computing = this.#moving.map((is) => 1 - is);
    this.#rankOf = new Map(model.layout.ranks.map((rank) => [rank.rank, rank]));
    this.element = h("div", {
      class: "tl-stage", tabindex: "0", role: "application", "aria-label": `Timeline of ${model.layout.ranks.length} ranks`, "aria-describedby": describedBy, "data-testid": "timeline-stage",
    }, this.#pixels, this.#words);
    this.space = h("div", { class: "tl-space" }, corner, ...gutter, this.element);
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
    model.pixels = Math.max(1, this.#pixels.width);
    this.recolor();
    model.refold();
  }

  /** The colors changed, or the size: what was made for the old ones is rebuilt. */
  recolor(): void {
    const model = this.#model;
    const palette = paletteOf(model);
    this.#palette = palette;
    this.#raster = new Raster(Math.max(1, this.#pixels.width), Math.max(1, this.#pixels.height), palette.inks, model.layout.categories.map(({ category }) => (MOVING.has(category) ? CATEGORIES[category].pattern : "none")));
    this.#image = new ImageData(this.#raster.bytes, this.#raster.width, this.#raster.height);
    this.#shown = null;
    this.request();
  }

  /** A moved picture is redrawn, exactly as its link would draw it. */
  rest(): void {
    const shown = this.#shown?.window;
    const { window } = this.#model;
    // A frame that is on its way would carry the last one on; a window that was rounded is not quite the one that is shown.
    if (!this.#carried && this.#asked === 0 && shown?.from === window.from && shown.to === window.to) return;
    this.#shown = null;
    this.#settle(false);
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
    const first = this.frame.first + (rows.kind[this.frame.first] === RowKind.Group ? 1 : 0);
    const kind = rows.kind[first];
    const of = rows.of[first] ?? 0;
    const rank = isOfRank(kind) ? layout.ranks[of]?.rank : layout.tracks[of]?.rank;
    if (rank === undefined) return null;
    return { rank, by: Math.max(0, Math.round(this.box.scrollTop + rows.pinnedHeight - (rows.top[rows.rowOfRank[rankIndex(layout, rank)] ?? 0] ?? 0))) };
  }

  /** The categories that are not drawn at this height of a row, `y` pixels below its top; null where all are. */
  leftOut(row: number, y: number): Uint8Array | null {
    const upper = upperPart(this.#model.rows, row);
    return upper === 0 ? null : y < upper ? this.#moving : this.#computing;
  }

  /** Brings a row into sight. */
  scrollToRow(row: number): void {
    const { rows } = this.#model;
    if (row < rows.pinned) return;
    const top = rows.top[row] ?? 0;
    const size = rows.size[row] ?? 0;
    if (top < this.box.scrollTop + rows.pinnedHeight + 8 || top + size > this.box.scrollTop + this.#model.height - 8) this.box.scrollTop = Math.max(0, top - this.#model.height / 3);
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
    const perPixel = (window.to - window.from) / raster.width;
    const level = Math.max(levelFor(perPixel, layout.baseBin, layout.factor, layout.levels), -6);
    const columns = cache.columnsOf(level, Math.max(0, window.from), Math.min(window.to, layout.span));
    const moved = this.#moved(scroll, perPixel, raster.width);
    const [from, beyond] = moved === null ? [0, raster.width] : moved > 0 ? [raster.width - moved, raster.width] : [0, -moved];
    const part = { from: window.from + from * perPixel, to: moved === null || moved > 0 ? window.to : window.from + beyond * perPixel };
    const scene: Scene = { cache, window, width: raster.width, level, levels: layout.levels, columns, part };
    const first = firstScrolled(rows, scroll);
    let last = first;
    while (last < rows.length && rows.top[last]! < scroll + model.height) last++;
    let complete = true;
    if (moved !== 0) {
      if (moved !== null) raster.shift(moved);
      this.#carried = moved !== null;
      raster.restart(from, beyond);
      raster.phase = ((Math.round(window.from / perPixel) % 6) + 6) % 6;
      complete = this.#rows(raster, scene, palette, scroll, ratio, first, last);
      if (moved === null) this.#visible = raster.cover.rectangles;
      this.#pixels.getContext("2d")?.putImageData(image, 0, 0);
    }
    this.#shown = complete ? { window, rows, scroll, version: cache.version } : null;
    for (const column of columns) cache.touch(column);
    this.frame = { scene, scroll, first, last };
    this.#labels.draw(this.frame, palette, ratio);
    this.#times[this.#frames++ % this.#times.length] = performance.now() - began;
    this.#loader.want(scene, rows, first, last);
    for (const tell of this.#after) tell();
    this.#complete = complete;
    if (!complete) this.#settle(false);
  }

  /** By how many pixels the picture has to be moved to the left to show the window; null where it has to be redrawn. */
  #moved(scroll: number, perPixel: number, width: number): number | null {
    const { window, rows, cache } = this.#model;
    const shown = this.#shown;
    if (!shown || shown.rows !== rows || shown.scroll !== scroll || shown.version !== cache.version) return null;
    if (Math.abs((shown.window.to - shown.window.from) / perPixel - width) > WHOLE_PIXEL) return null;
    const by = (window.from - shown.window.from) / perPixel;
    const pixels = Math.round(by);
    return Math.abs(by - pixels) < WHOLE_PIXEL && Math.abs(pixels) < width ? pixels : null;
  }

  /** Draws the visible rows; whether all that belongs in them was at hand. */
  #rows(raster: Raster, scene: Scene, palette: Palette, scroll: number, ratio: number, first: number, last: number): boolean {
    const { rows } = this.#model;
    const scrolled = this.#band(raster, scene, palette, scroll, ratio, first, last, raster.height);
    if (rows.pinned === 0) return scrolled;
    // Over the others: their upper edge is below these.
    return this.#band(raster, scene, palette, 0, ratio, 0, rows.pinned, Math.round(rows.pinnedHeight * ratio)) && scrolled;
  }

  #band(raster: Raster, scene: Scene, palette: Palette, scroll: number, ratio: number, first: number, last: number, beyond: number): boolean {
    const { rows } = this.#model;
    const thick = Math.max(1, Math.round(ratio));
    let complete = true;
    let free = 0;
    for (let row = first; row < last; row++) {
      const lane = rows.lane[row]!;
      const top = Math.round((rows.top[row]! - scroll) * ratio);
      const bottom = Math.max(top + 1, Math.round((rows.top[row]! + rows.size[row]! - scroll) * ratio));
      raster.ground(free, lane < 0 ? bottom : top, palette.page);
      free = bottom;
      if (lane >= 0) {
        const ground = rows.kind[row] === RowKind.Rank ? palette.rankRow : palette.lane;
        const upper = Math.round(upperPart(rows, row) * ratio);
        raster.cover.begin();
        if (!drawLane(raster.cover, scene, lane)) complete = false;
        raster.finish(top, upper > 0 ? upper : bottom - top, ground, palette.hatch, upper > 0 ? this.#moving : null);
        if (upper > 0) raster.finish(top + upper, bottom - top - upper, ground, palette.hatch, this.#computing);
      }
    }
    raster.ground(free, beyond, palette.page);
    for (let row = first; row < last; row++) this.#steps(raster, scene, palette, row, scroll, ratio, thick);
    return complete;
  }

  /** Where a rank's steps begin, over its own rows: on aligned clocks a rank that is behind is seen to be. */
  #steps(raster: Raster, scene: Scene, palette: Palette, row: number, scroll: number, ratio: number, thick: number): void {
    const { rows, layout } = this.#model;
    const kind = rows.kind[row];
    if (kind === RowKind.Lane || kind === RowKind.More || kind === RowKind.Name || kind === RowKind.Group) return;
    const of = rows.of[row]!;
    const rank = kind === RowKind.Track ? this.#rankOf.get(layout.tracks[of]?.rank ?? -1) : layout.ranks[of];
    if (!rank) return;
    const top = Math.round((rows.top[row]! - 1 - scroll) * ratio);
    const bottom = Math.round((rows.top[row]! + rows.size[row]! + 2 - scroll) * ratio);
    const scale = scene.width / (scene.window.to - scene.window.from);
    const line = (at: number): void => raster.upright(Math.round((at - scene.window.from) * scale), thick, top, bottom, palette.strongInk);
    for (const { start } of rank.steps) line(start);
    const end = rank.steps.at(-1);
    if (end) line(end.end);
  }

  /** Tells tests and assistive technology whether everything visible is drawn from exact data. */
  #settle(settled: boolean): void {
    if (this.element.dataset["settled"] !== String(settled)) this.element.dataset["settled"] = String(settled);
  }

  /** Script time of the last frames in ms, and what the last one drew: for the benchmark. */
  stats(): { frames: number; median_ms: number; p95_ms: number; rectangles: number; tile_bytes: number } {
    const times = [...this.#times.subarray(0, Math.min(this.#frames, this.#times.length))].sort((a, b) => a - b);
    const at = (share: number): number => times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0;
    return { frames: this.#frames, median_ms: at(0.5), p95_ms: at(0.95), rectangles: this.#visible, tile_bytes: this.#model.cache.bytes };
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
  const strong = color("--line-strong");
  return {
    inks, hatch, page: ink(color("--page")), lane: ink(color("--surface")), rankRow: ink(color("--raised")),
    onInk: inks.map(({ r, g, b }) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff")),
    text: color("--text"), muted: color("--muted"), line: color("--line"), strong, strongInk: ink(strong), accent: color("--accent"), surface: color("--surface"),
    warning: color("--warning"), error: color("--error"), select: color("--select"),
  };
}

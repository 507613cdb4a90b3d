/**
 * Draws rows of time into the pixels of an ImageData. Each pixel's colour is the mean over the time it covers: a share
 * of each category, the rest background. No object is made per event; all state is typed arrays of one row's width.
 */
import type { Pattern } from "../theme/categories.ts";

/** What there is at all must be seen: a pixel with anything in it is at least this much inked. */
export const FAINTEST = 0.22;
/** Events this wide get an edge on their left, so that neighbours of one colour stay apart. */
const EDGE_PX = 4;
const PATTERN_FROM_PX = 12;

export interface Ink {
  readonly r: number;
  readonly g: number;
  readonly b: number;
}

/** 6 by 6 pixels, one bit a pixel: the patterns of theme/charts.css, for the canvas. */
const MASKS: Readonly<Record<Pattern, (x: number, y: number) => boolean>> = {
  none: () => false,
  rising: (x, y) => (x + y) % 6 < 2,
  falling: (x, y) => (x - y + 6) % 6 < 2,
  level: (_x, y) => y % 6 < 2,
  upright: (x) => x % 6 < 2,
  dots: (x, y) => x % 6 >= 2 && x % 6 < 4 && y % 6 >= 2 && y % 6 < 4,
  grid: (x, y) => x % 3 === 1 && y % 3 === 1,
};

export class Raster {
  readonly width: number;
  readonly height: number;
  readonly pixels: Uint32Array;
  readonly bytes: Uint8ClampedArray<ArrayBuffer>;
  /** How many rectangles the last frame was made of. */
  rectangles = 0;
  readonly #share: Float32Array;
  readonly #red: Float32Array;
  readonly #green: Float32Array;
  readonly #blue: Float32Array;
  readonly #edge: Uint8Array;
  /** The category that holds most of a pixel, for its pattern. */
  readonly #most: Float32Array;
  readonly #which: Uint8Array;
  readonly #r: Float32Array;
  readonly #g: Float32Array;
  readonly #b: Float32Array;
  readonly #masks: Uint8Array;
  #low = 0;
  #high = -1;

  constructor(width: number, height: number, inks: readonly Ink[], patterns: readonly Pattern[]) {
    this.width = width;
    this.height = height;
    this.bytes = new Uint8ClampedArray(width * height * 4);
    this.pixels = new Uint32Array(this.bytes.buffer);
    this.#share = new Float32Array(width);
    this.#red = new Float32Array(width);
    this.#green = new Float32Array(width);
    this.#blue = new Float32Array(width);
    this.#most = new Float32Array(width);
    this.#which = new Uint8Array(width);
    this.#edge = new Uint8Array(width);
    this.#r = Float32Array.from(inks, (ink) => ink.r);
    this.#g = Float32Array.from(inks, (ink) => ink.g);
    this.#b = Float32Array.from(inks, (ink) => ink.b);
    this.#masks = new Uint8Array(256 * 36);
    patterns.forEach((pattern, category) => {
      for (let i = 0; i < 36; i++) this.#masks[category * 36 + i] = MASKS[pattern](i % 6, Math.floor(i / 6)) ? 1 : 0;
    });
  }

  clear(background: Ink): void {
    this.pixels.fill(packed(background.r, background.g, background.b));
    this.rectangles = 0;
  }

  /** Begins a row; spans of the last one are forgotten. */
  begin(): void {
    if (this.#high >= this.#low) {
      const [low, high] = [this.#low, this.#high + 1];
      this.#share.fill(0, low, high);
      this.#red.fill(0, low, high);
      this.#green.fill(0, low, high);
      this.#blue.fill(0, low, high);
      this.#most.fill(0, low, high);
      this.#edge.fill(0, low, high);
    }
    this.#low = this.width;
    this.#high = -1;
  }

  /** From x0 to x1 (pixels, fractions count), a category holds this share of the time. */
  span(x0: number, x1: number, share: number, category: number, edged: boolean): void {
    const width = this.width;
    if (x1 <= 0 || x0 >= width || !(share > 0)) return;
    this.rectangles++;
    const wide = edged && x1 - x0 >= EDGE_PX;
    const left = x0 < 0 ? 0 : x0;
    const right = x1 > width ? width : x1;
    const first = Math.floor(left);
    const last = Math.min(width - 1, Math.max(first, Math.ceil(right) - 1));
    if (first < this.#low) this.#low = first;
    if (last > this.#high) this.#high = last;
    if (wide && x0 >= 0) this.#edge[first] = 1;
    if (first === last) {
      this.#add(first, (right - left) * share, category);
      return;
    }
    this.#add(first, (first + 1 - left) * share, category);
    for (let x = first + 1; x < last; x++) this.#add(x, share, category);
    this.#add(last, (right - last) * share, category);
  }

  #add(x: number, part: number, category: number): void {
    this.#share[x]! += part;
    this.#red[x]! += part * this.#r[category]!;
    this.#green[x]! += part * this.#g[category]!;
    this.#blue[x]! += part * this.#b[category]!;
    if (part > this.#most[x]!) {
      this.#most[x] = part;
      this.#which[x] = category;
    }
  }

  /** Writes the row's spans over `height` lines from `top` on, over a background. Lines outside of the picture are cut. */
  finish(top: number, height: number, background: Ink, hatch: Ink & { readonly a: number }): void {
    const from = Math.max(0, top);
    const to = Math.min(this.height, top + height);
    if (from >= to) return;
    const width = this.width;
    const pixels = this.pixels;
    const line = from * width;
    const plain = packed(background.r, background.g, background.b);
    pixels.fill(plain, line, line + width);
    for (let x = this.#low; x <= this.#high; x++) {
      const share = this.#share[x]!;
      if (share <= 0) continue;
      const ink = share >= 1 ? 1 : share < FAINTEST ? FAINTEST : share;
      const scale = ink / share;
      const rest = 1 - ink;
      const dim = this.#edge[x] ? 0.66 : 1;
      pixels[line + x] = packed(
        (this.#red[x]! * scale + background.r * rest) * dim,
        (this.#green[x]! * scale + background.g * rest) * dim,
        (this.#blue[x]! * scale + background.b * rest) * dim);
    }
    if (height < PATTERN_FROM_PX || this.#high < this.#low) {
      for (let y = from + 1; y < to; y++) pixels.copyWithin(y * width, line, line + width);
      return;
    }
    // Six lines hold every phase of every pattern; the others are copies of those.
    const lines = Math.min(6, to - from);
    for (let y = lines - 1; y >= 0; y--) {
      const target = (from + y) * width;
      if (y > 0) pixels.copyWithin(target, line, line + width);
      this.#hatch(target, (from + y - top) % 6, hatch);
    }
    for (let y = from + 6; y < to; y++) pixels.copyWithin(y * width, (y - 6) * width, (y - 5) * width);
  }

  #hatch(line: number, phase: number, hatch: Ink & { readonly a: number }): void {
    const pixels = this.pixels;
    const masks = this.#masks;
    const keep = 1 - hatch.a;
    for (let x = this.#low; x <= this.#high; x++) {
      if (this.#most[x]! < 0.5 || masks[this.#which[x]! * 36 + phase * 6 + (x % 6)] === 0) continue;
      const at = line + x;
      const pixel = pixels[at]!;
      pixels[at] = packed((pixel & 255) * keep + hatch.r * hatch.a, ((pixel >>> 8) & 255) * keep + hatch.g * hatch.a, ((pixel >>> 16) & 255) * keep + hatch.b * hatch.a);
    }
  }
}

function packed(r: number, g: number, b: number): number {
  return (0xff000000 | ((b + 0.5) << 16) | ((g + 0.5) << 8) | (r + 0.5)) >>> 0;
}

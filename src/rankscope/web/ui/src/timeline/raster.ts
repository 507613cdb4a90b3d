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
/** Steps of a share for which the colours are worked out beforehand. */
const TINTS = 500;
const FAINT = Math.round(FAINTEST * TINTS);

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
  /** Share of each pixel by category: category × width + x. */
  readonly #shares: Float32Array;
  /** Categories that the row holds, and which of them were met already. */
  readonly #present: number[] = [];
  readonly #met: Uint8Array;
  /** Where an event begins that is wide enough for an edge: a bit for its category. */
  readonly #edge: Uint32Array;
  #edged = false;
  readonly #r: Float32Array;
  readonly #g: Float32Array;
  readonly #b: Float32Array;
  readonly #masks: Uint8Array;
  readonly #tinted = new Map<number, Uint32Array>();
  #low = 0;
  #high = -1;

  constructor(width: number, height: number, inks: readonly Ink[], patterns: readonly Pattern[]) {
    this.width = width;
    this.height = height;
    this.bytes = new Uint8ClampedArray(width * height * 4);
    this.pixels = new Uint32Array(this.bytes.buffer);
    this.#shares = new Float32Array(width * (inks.length + 1)); // the last stays empty
    this.#met = new Uint8Array(inks.length);
    this.#edge = new Uint32Array(width);
    this.#r = Float32Array.from(inks, (ink) => ink.r);
    this.#g = Float32Array.from(inks, (ink) => ink.g);
    this.#b = Float32Array.from(inks, (ink) => ink.b);
    this.#masks = new Uint8Array(inks.length * 36);
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
      for (const category of this.#present) this.#shares.fill(0, category * this.width + this.#low, category * this.width + this.#high + 1);
      this.#edge.fill(0, this.#low, this.#high + 1);
    }
    this.#edged = false;
    this.#met.fill(0);
    this.#present.length = 0;
    this.#low = this.width;
    this.#high = -1;
  }

  /** From x0 to x1 (pixels, fractions count), a category holds this share of the time. */
  span(x0: number, x1: number, share: number, category: number, edged: boolean): void {
    const width = this.width;
    if (x1 <= 0 || x0 >= width || !(share > 0) || category >= this.#met.length) return;
    this.rectangles++;
    const left = x0 < 0 ? 0 : x0;
    const right = x1 > width ? width : x1;
    const first = left | 0;
    const last = Math.min(width - 1, Math.max(first, Math.ceil(right) - 1));
    if (first < this.#low) this.#low = first;
    if (last > this.#high) this.#high = last;
    if (edged && x0 >= 0 && x1 - x0 >= EDGE_PX) this.#mark(first, category);
    this.#meet(category);
    const shares = this.#shares;
    const base = category * width;
    if (first === last) {
      shares[base + first]! += (right - left) * share;
      return;
    }
    shares[base + first]! += (first + 1 - left) * share;
    for (let x = first + 1; x < last; x++) shares[base + x]! += share;
    shares[base + last]! += (right - last) * share;
  }

  /** Many bins of one width at once: bin b lies from b × step + offset (pixels) on, busy for its part of `whole`. */
  bins(bins: Uint32Array, categories: Uint8Array, busy: Float64Array, from: number, to: number, offset: number, step: number, whole: number): void {
    if (from >= to) return;
    if (step > 1) {
      for (let i = from; i < to; i++) this.span(bins[i]! * step + offset, (bins[i]! + 1) * step + offset, busy[i]! / whole, categories[i]!, false);
      return;
    }
    // At most a pixel wide: a bin lies in one pixel or in two. This is where the time of a frame goes, so nothing is called.
    const width = this.width;
    const shares = this.#shares;
    const met = this.#met;
    const part = step / whole;
    for (let i = from; i < to; i++) {
      const x = bins[i]! * step + offset;
      const category = categories[i]!;
      if (met[category] !== 1) this.#meet(category);
      const first = Math.floor(x);
      const beyond = x + step - first - 1;
      const at = category * width + first;
      const amount = busy[i]! * part;
      if (beyond <= 0) {
        if (first >= 0 && first < width) shares[at]! += amount;
      } else {
        const second = (amount * beyond) / step;
        if (first >= 0 && first < width) shares[at]! += amount - second;
        if (first >= -1 && first + 1 < width) shares[at + 1]! += second;
      }
    }
    this.rectangles += to - from;
    this.#low = Math.max(0, Math.min(this.#low, Math.floor(bins[from]! * step + offset)));
    this.#high = Math.min(width - 1, Math.max(this.#high, Math.floor((bins[to - 1]! + 1) * step + offset)));
  }

  /** Many events at once, sorted by start; each is cut to [low, high). An instant `at` lies at (at - origin) × scale pixels. */
  events(starts: Float64Array, ends: Float64Array, categories: Uint8Array, from: number, to: number, origin: number, scale: number, low: number, high: number): void {
    const width = this.width;
    const shares = this.#shares;
    const met = this.#met;
    let drawn = 0;
    let least = this.#low;
    let most = this.#high;
    for (let i = from; i < to; i++) {
      const start = starts[i]!;
      if (start >= high) break;
      const end = ends[i]!;
      if (end < low) continue;
      const category = categories[i]!;
      if (met[category] !== 1) this.#meet(category);
      let x0 = ((start > low ? start : low) - origin) * scale;
      let x1 = ((end < high ? end : high) - origin) * scale;
      if (x1 <= x0) x1 = x0 + 1e-3; // no length, yet something happened
      if (x1 <= 0 || x0 >= width) continue;
      const edged = start >= low && x0 >= 0 && x1 - x0 >= EDGE_PX;
      if (x0 < 0) x0 = 0;
      if (x1 > width) x1 = width;
      drawn++;
      const first = x0 | 0;
      const base = category * width;
      if (first < least) least = first;
      if (x1 <= first + 1) {
        shares[base + first]! += x1 - x0;
        if (first > most) most = first;
        continue;
      }
      let last = x1 | 0;
      if (last === x1) last--;
      if (last > most) most = last;
      if (edged) this.#mark(first, category);
      shares[base + first]! += first + 1 - x0;
      for (let x = first + 1; x < last; x++) shares[base + x]! += 1;
      shares[base + last]! += x1 - last;
    }
    this.rectangles += drawn;
    this.#low = least;
    this.#high = most;
  }

  /** The colour of every category at every share of a pixel, over a background. */
  #tints(background: Ink): Uint32Array {
    const key = packed(background.r, background.g, background.b);
    let tints = this.#tinted.get(key);
    if (!tints) {
      tints = new Uint32Array(this.#r.length << 9);
      for (let category = 0; category < this.#r.length; category++) {
        for (let level = 0; level <= TINTS; level++) {
          const ink = level / TINTS;
          tints[(category << 9) + level] = packed(this.#r[category]! * ink + background.r * (1 - ink), this.#g[category]! * ink + background.g * (1 - ink), this.#b[category]! * ink + background.b * (1 - ink));
        }
      }
      this.#tinted.set(key, tints);
    }
    return tints;
  }

  #mark(x: number, category: number): void {
    this.#edge[x]! |= 1 << category;
    this.#edged = true;
  }

  #meet(category: number): void {
    if (this.#met[category] !== 0) return;
    this.#met[category] = 1;
    this.#present.push(category);
  }

  /**
   * Writes the row's spans over `height` lines from `top` on, over a background. Lines outside of the picture are cut.
   * Categories with a 1 in `left` are left out: a row in two parts is met once and written twice.
   */
  finish(top: number, height: number, background: Ink, hatch: Ink & { readonly a: number }, left: Uint8Array | null = null): void {
    const from = Math.max(0, top);
    const to = Math.min(this.height, top + height);
    if (from >= to) return;
    const width = this.width;
    const pixels = this.pixels;
    const line = from * width;
    const plain = packed(background.r, background.g, background.b);
    pixels.fill(plain, line, line + width);
    const present = left ? this.#present.filter((category) => left[category] !== 1) : this.#present;
    let bits = 0;
    for (const category of present) bits |= 1 << category;
    const shares = this.#shares;
    const [inkR, inkG, inkB, edge] = [this.#r, this.#g, this.#b, this.#edge];
    const alone = this.#tints(background);
    // Nearly every pixel holds one of at most three categories: its colour at that share is known beforehand.
    const few = present.length <= 3;
    const nothing = inkR.length * width;
    const [first, second, third] = [present[0] ?? 0, present[1] ?? 0, present[2] ?? 0];
    const [base1, base2, base3] = [present.length > 0 ? first * width : nothing, present.length > 1 ? second * width : nothing, present.length > 2 ? third * width : nothing];
    const edged = this.#edged;
    if (present.length === 1 && !edged) {
      // Most rows hold one category: nothing is asked but how much of it there is.
      const row = first << 9;
      for (let x = this.#low; x <= this.#high; x++) {
        const a = shares[base1 + x]!;
        if (a > 0) pixels[line + x] = alone[row + (a >= 1 ? TINTS : a <= FAINTEST ? FAINT : (a * TINTS + 0.5) | 0)]!;
      }
    } else for (let x = this.#low; x <= this.#high; x++) {
      if (few && !(edged && (edge[x]! & bits) !== 0)) {
        const a = shares[base1 + x]!;
        const b = shares[base2 + x]!;
        const c = shares[base3 + x]!;
        if (b === 0 && c === 0) {
          if (a > 0) pixels[line + x] = alone[(first << 9) + level(a)]!;
          continue;
        }
        if (a === 0 && c === 0) {
          pixels[line + x] = alone[(second << 9) + level(b)]!;
          continue;
        }
        if (a === 0 && b === 0) {
          pixels[line + x] = alone[(third << 9) + level(c)]!;
          continue;
        }
      }
      let share = 0;
      let r = 0;
      let g = 0;
      let b = 0;
      for (let k = 0; k < present.length; k++) {
        const category = present[k]!;
        const part = shares[category * width + x]!;
        if (part === 0) continue;
        share += part;
        r += part * inkR[category]!;
        g += part * inkG[category]!;
        b += part * inkB[category]!;
      }
      if (share <= 0) continue;
      const ink = share >= 1 ? 1 : share < FAINTEST ? FAINTEST : share;
      const scale = ink / share;
      const rest = 1 - ink;
      const dim = (edge[x]! & bits) !== 0 ? 0.66 : 1;
      pixels[line + x] = packed((r * scale + background.r * rest) * dim, (g * scale + background.g * rest) * dim, (b * scale + background.b * rest) * dim);
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
      this.#hatch(target, (from + y - top) % 6, hatch, present);
    }
    for (let y = from + 6; y < to; y++) pixels.copyWithin(y * width, (y - 6) * width, (y - 5) * width);
  }

  /** Over pixels that a patterned category holds for the most part. */
  #hatch(line: number, phase: number, hatch: Ink & { readonly a: number }, present: readonly number[]): void {
    const pixels = this.pixels;
    const masks = this.#masks;
    const shares = this.#shares;
    const keep = 1 - hatch.a;
    const [r, g, b] = [hatch.r * hatch.a, hatch.g * hatch.a, hatch.b * hatch.a];
    for (const category of present) {
      const row = category * 36 + phase * 6;
      const base = category * this.width;
      if (!masks.subarray(row, row + 6).includes(1)) continue;
      for (let x = this.#low; x <= this.#high; x++) {
        if (shares[base + x]! < 0.5 || masks[row + (x % 6)] === 0) continue;
        const at = line + x;
        const pixel = pixels[at]!;
        pixels[at] = packed((pixel & 255) * keep + r, ((pixel >>> 8) & 255) * keep + g, ((pixel >>> 16) & 255) * keep + b);
      }
    }
  }
}

/** The step of a share for which the colour is known; never below what can be seen. */
function level(share: number): number {
  return share >= 1 ? TINTS : share <= FAINTEST ? FAINT : (share * TINTS + 0.5) | 0;
}

function packed(r: number, g: number, b: number): number {
  return (0xff000000 | ((b + 0.5) << 16) | ((g + 0.5) << 8) | (r + 0.5)) >>> 0;
}

/**
 * Draws rows of time into the pixels of an ImageData. Each pixel's colour is the mean over the time it covers: a share
 * of each category, the rest background.
 *
 * A frame draws some hundred thousand rectangles, most of them about a pixel wide, so what costs is not arithmetic but
 * branches that cannot be foreseen. A row is therefore held as differences: a rectangle adds to the pixels where it
 * begins and takes away where it ends, however wide it is, and the sum from the left is what is covered. All of it is in
 * whole 65,536ths of a pixel: what is added is taken away again to the last bit, and no object is made per rectangle.
 */
import type { Pattern } from "../theme/categories.ts";

/** What there is at all must be seen: a pixel with anything in it is at least this much inked. */
export const FAINTEST = 0.22;
/** A pixel that is covered whole. */
const ONE = 1 << 16;
const HALF = ONE >> 1;
const FAINT = Math.round(FAINTEST * ONE);
/** The width of what has none, yet happened. */
const SLIVER = 64;
/** Events this wide get an edge on their left, so that neighbours of one colour stay apart. */
const EDGE = 4 * ONE;
const DIM = 0.66;
/** Makes a fraction of every number, and keeps its sign. */
const SMALLEST = 2 ** -200;
const PATTERN_FROM_PX = 12;
/** Pixels beside the picture, so that what is cut by its edges needs no question. */
const PAD = 2;

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
  /** How many rectangles were drawn since `restart`. */
  rectangles = 0;
  /** How far the patterns are moved to the left, so that they go along with what they are of. */
  phase = 0;
  readonly #inks: readonly Ink[];
  /** What is covered, as differences: category × stride + PAD + x. */
  readonly #cover: Int32Array;
  readonly #stride: number;
  /** Categories that the row holds, and which of them were met already. */
  readonly #present: number[] = [];
  readonly #met: Uint8Array;
  /** Where events begin that are wide enough for an edge: x × 256 + category. */
  readonly #edges: Int32Array;
  #edged = 0;
  readonly #patterned: Uint8Array;
  readonly #masks: Uint8Array;
  /** Per pixel the category, plus 1, whose pattern lies over it. */
  readonly #over: Uint8Array;
  /** The columns that are drawn, and the part of them that the row holds something in. */
  #first = 0;
  #beyond: number;
  #low = 0;
  #high = -1;

  constructor(width: number, height: number, inks: readonly Ink[], patterns: readonly Pattern[]) {
    this.width = width;
    this.height = height;
    this.bytes = new Uint8ClampedArray(width * height * 4);
    this.pixels = new Uint32Array(this.bytes.buffer);
    this.#inks = inks;
    this.#stride = width + 2 * PAD + 2;
    this.#cover = new Int32Array(this.#stride * (inks.length + 1)); // the last stays empty
    this.#met = new Uint8Array(inks.length);
    this.#edges = new Int32Array(4 * width + 64);
    this.#over = new Uint8Array(width);
    this.#beyond = width;
    this.#masks = new Uint8Array(inks.length * 36);
    patterns.forEach((pattern, category) => {
      for (let i = 0; i < 36; i++) this.#masks[category * 36 + i] = MASKS[pattern](i % 6, Math.floor(i / 6)) ? 1 : 0;
    });
    this.#patterned = Uint8Array.from(patterns, (pattern) => (pattern === "none" ? 0 : 1));
  }

  /** Begins a picture, or the columns from `first` to before `beyond` of one: what lies beside them is left as it is. */
  restart(first = 0, beyond = this.width): void {
    this.#first = first;
    this.#beyond = beyond;
    this.rectangles = 0;
  }

  /** Moves the whole picture to the left (or right, where below 0): the columns that come in have to be drawn. */
  shift(by: number): void {
    if (by > 0) this.pixels.copyWithin(0, by);
    else this.pixels.copyWithin(-by, 0);
  }

  /** Fills lines, to before `bottom`. */
  ground(top: number, bottom: number, ink: Ink): void {
    const colour = packed(ink.r, ink.g, ink.b);
    const from = Math.max(0, top);
    const to = Math.min(this.height, bottom);
    if (this.#first === 0 && this.#beyond === this.width) {
      if (from < to) this.pixels.fill(colour, from * this.width, to * this.width);
    } else for (let y = from; y < to; y++) this.pixels.fill(colour, y * this.width + this.#first, y * this.width + this.#beyond);
  }

  /** An upright line over what is drawn, as far as it lies in the columns that are. */
  upright(x: number, thick: number, top: number, bottom: number, ink: Ink): void {
    const colour = packed(ink.r, ink.g, ink.b);
    const from = Math.max(this.#first, x);
    const to = Math.min(this.#beyond, x + thick);
    if (from >= to) return;
    for (let y = Math.max(0, top); y < Math.min(this.height, bottom); y++) this.pixels.fill(colour, y * this.width + from, y * this.width + to);
  }

  /** Begins a row; what the last one held is forgotten. */
  begin(): void {
    const stride = this.#stride;
    for (const category of this.#present) {
      this.#met[category] = 0;
      this.#cover.fill(0, category * stride, (category + 1) * stride);
    }
    this.#present.length = 0;
    this.#edged = 0;
    this.#low = this.#beyond;
    this.#high = this.#first - 1;
  }

  /** From x0 to x1 (pixels, fractions count), a category holds this share of the time. */
  span(x0: number, x1: number, share: number, category: number, edged: boolean): void {
    const [first, beyond] = [this.#first, this.#beyond];
    if (x1 <= first || x0 >= beyond || !(share > 0) || category >= this.#met.length) return;
    this.rectangles++;
    this.#meet(category);
    const left = ((x0 < first ? first : x0) * ONE) | 0;
    const right = Math.max(left + 1, ((x1 > beyond ? beyond : x1) * ONE) | 0);
    const whole = Math.max(1, Math.round(share * ONE));
    const cover = this.#cover;
    const base = category * this.#stride + PAD;
    const [from, to] = [left >> 16, right >> 16];
    const [after, rest] = [Math.round(((left & (ONE - 1)) * whole) / ONE), Math.round(((right & (ONE - 1)) * whole) / ONE)];
    // What a share of next to nothing covers is seen all the same.
    const least = from === to && rest === after ? 1 : 0;
    cover[base + from]! += whole - after + least;
    cover[base + from + 1]! += after - least;
    cover[base + to]! -= whole - rest;
    cover[base + to + 1]! -= rest;
    if (edged && x0 >= first && (x1 - x0) * ONE >= EDGE) this.#edges[this.#edged++] = (from << 8) | category;
    if (from < this.#low) this.#low = from;
    if (to > this.#high) this.#high = Math.min(to, beyond - 1);
  }

  /** Many bins of one width at once: bin b lies from b × step + offset (pixels) on, busy for its part of `whole`. */
  bins(bins: Uint32Array, categories: Uint8Array, busy: Float64Array, from: number, to: number, offset: number, step: number, whole: number): void {
    if (from >= to) return;
    if (step > 1 || step < 0.25) {
      for (let i = from; i < to; i++) this.span(bins[i]! * step + offset, (bins[i]! + 1) * step + offset, busy[i]! / whole, categories[i]!, false);
      return;
    }
    // A pixel wide at most, and a fourth of one at least: a bin lies in one pixel or in two.
    const cover = this.#cover;
    const met = this.#met;
    const stride = this.#stride;
    const part = (step * ONE) / whole;
    // Bins begin at most one of their width before the first column, and never behind the last: the caller sees to that.
    const moved = (offset + PAD) * ONE;
    const wide = step * ONE;
    const over = Math.round(wide) - ONE;
    const inverse = Math.round((ONE / wide) * 8192);
    for (let i = from; i < to; i++) {
      const category = categories[i]!;
      if (met[category] !== 1) this.#meet(category);
      const x = (bins[i]! * wide + moved) | 0;
      let amount = (busy[i]! * part + 0.5) | 0;
      amount += (amount - 1) >>> 31; // never nothing
      // How much of the bin lies in the next pixel, in 16,384ths.
      let beyond = (x & (ONE - 1)) + over;
      beyond &= ~(beyond >> 31);
      const second = Math.imul(amount, Math.imul(beyond >> 1, inverse) >> 14) >> 14;
      const at = Math.imul(category, stride) + (x >> 16);
      cover[at]! += amount - second;
      cover[at + 1]! += second + second - amount;
      cover[at + 2]! -= second;
    }
    this.rectangles += to - from;
    this.#low = Math.max(this.#first, Math.min(this.#low, Math.floor(bins[from]! * step + offset)));
    this.#high = Math.min(this.#beyond - 1, Math.max(this.#high, Math.floor((bins[to - 1]! + 1) * step + offset)));
  }

  /** Many events at once, sorted by start; each is cut to [low, high). An instant `at` lies at (at - origin) × scale pixels. */
  events(starts: Float64Array, ends: Float64Array, categories: Uint8Array, from: number, to: number, origin: number, scale: number, low: number, high: number): void {
    const cover = this.#cover;
    const met = this.#met;
    const stride = this.#stride | 0;
    const edges = this.#edges;
    const fine = +scale * ONE;
    const begin = +origin;
    const lowest = +low;
    const highest = +high;
    const leftmost = this.#first * ONE;
    const rightmost = this.#beyond * ONE;
    let edged = this.#edged | 0;
    let drawn = 0;
    let least = this.#low | 0;
    let most = this.#high | 0;
    const until = to | 0;
    for (let i = from | 0; i < until; i++) {
      let start = starts[i]!;
      if (start >= highest) break;
      let end = ends[i]!;
      // How wide it is, be it cut or not: else an edge would come and go as the view moves. -1 where wide enough.
      let edge = Math.floor((EDGE - 1 - (end - start) * fine) * SMALLEST) | 0;
      if (start < lowest) {
        if (end <= lowest) continue;
        start = lowest;
        edge = 0;
      }
      if (end > highest) end = highest;
      let x0 = (start - begin) * fine;
      let x1 = (end - begin) * fine;
      if (x0 >= rightmost) break;
      if (x0 < leftmost) {
        if (x1 < leftmost) continue;
        x0 = leftmost;
        edge = 0;
      }
      if (x1 > rightmost) x1 = rightmost;
      const category = categories[i]!;
      if (met[category] !== 1) this.#meet(category);
      const left = x0 | 0;
      let right = x1 | 0;
      if (right <= left) right = left + SLIVER;
      const first = left >> 16;
      const last = right >> 16;
      const base = Math.imul(category, stride) + PAD;
      const after = left & (ONE - 1);
      const rest = right & (ONE - 1);
      cover[base + first]! += ONE - after;
      cover[base + first + 1]! += after;
      cover[base + last]! -= ONE - rest;
      cover[base + last + 1]! -= rest;
      edges[edged] = (first << 8) | category;
      edged -= edge;
      if (first < least) least = first;
      if (last > most) most = last;
      drawn++;
    }
    this.rectangles += drawn;
    this.#edged = Math.min(edged, edges.length - 1);
    this.#low = least;
    this.#high = Math.min(most, this.#beyond - 1);
  }

  #meet(category: number): void {
    if (this.#met[category] !== 0) return;
    this.#met[category] = 1;
    this.#present.push(category);
  }

  /**
   * Writes the row over `height` lines from `top` on, over a background. Lines outside of the picture are cut.
   * Categories with a 1 in `left` are left out: a row in two parts is met once and written twice, each category once.
   */
  finish(top: number, height: number, background: Ink, hatch: Ink & { readonly a: number }, left: Uint8Array | null = null): void {
    const from = Math.max(0, top);
    const to = Math.min(this.height, top + height);
    if (from >= to) return;
    const width = this.width;
    const pixels = this.pixels;
    const [first, beyond] = [this.#first, this.#beyond];
    const line = from * width;
    pixels.fill(packed(background.r, background.g, background.b), line + first, line + beyond);
    const present = left ? this.#present.filter((category) => left[category] !== 1) : this.#present;
    if (present.length > 3) this.#many(line, present, background);
    else if (present.length > 0 && this.#high >= this.#low) this.#few(line, present, background);
    this.#mark(line, left);
    const hatched = height >= PATTERN_FROM_PX && hatch.a > 0 && this.#high >= this.#low && this.#patterns(present);
    if (!hatched) {
      for (let y = from + 1; y < to; y++) pixels.copyWithin(y * width + first, line + first, line + beyond);
      return;
    }
    // Six lines hold every phase of every pattern; the others are copies of those.
    const lines = Math.min(6, to - from);
    for (let y = lines - 1; y >= 0; y--) {
      const target = (from + y) * width;
      if (y > 0) pixels.copyWithin(target + first, line + first, line + beyond);
      this.#hatch(target, (from + y - top) % 6, hatch);
    }
    for (let y = from + 6; y < to; y++) pixels.copyWithin(y * width + first, (y - 6) * width + first, (y - 6) * width + beyond);
  }

  /** The colours of a row of at most three categories, as nearly all are: all in whole numbers. */
  #few(line: number, present: readonly number[], background: Ink): void {
    const pixels = this.pixels;
    const cover = this.#cover;
    const nothing = this.#inks.length * this.#stride + PAD;
    const [ink1, ink2, ink3] = [0, 1, 2].map((index) => this.#inks[present[index] ?? -1] ?? background) as [Ink, Ink, Ink];
    // Each number is made whole once, out here: in the loop the engine would look at its kind again for every pixel.
    const at1 = (present.length > 0 ? present[0]! * this.#stride + PAD : nothing) | 0;
    const at2 = (present.length > 1 ? present[1]! * this.#stride + PAD : nothing) | 0;
    const at3 = (present.length > 2 ? present[2]! * this.#stride + PAD : nothing) | 0;
    // How much each part of a category moves the colour away from the background's, in 65,536ths.
    const r1 = (ink1.r - background.r) | 0;
    const g1 = (ink1.g - background.g) | 0;
    const b1 = (ink1.b - background.b) | 0;
    const r2 = (ink2.r - background.r) | 0;
    const g2 = (ink2.g - background.g) | 0;
    const b2 = (ink2.b - background.b) | 0;
    const r3 = (ink3.r - background.r) | 0;
    const g3 = (ink3.g - background.g) | 0;
    const b3 = (ink3.b - background.b) | 0;
    const r0 = (background.r * ONE + HALF) | 0;
    const g0 = (background.g * ONE + HALF) | 0;
    const b0 = (background.b * ONE + HALF) | 0;
    const low = this.#low | 0;
    const high = this.#high | 0;
    let sum1 = 0;
    let sum2 = 0;
    let sum3 = 0;
    for (let x = low - PAD; x < low; x++) {
      sum1 = (sum1 + cover[at1 + x]!) | 0;
      sum2 = (sum2 + cover[at2 + x]!) | 0;
      sum3 = (sum3 + cover[at3 + x]!) | 0;
    }
    // Without a branch: what is empty, faint, full or more than full comes in no order that a processor could foresee.
    if (present.length === 1) {
      for (let x = low; x <= high; x++) {
        sum1 = (sum1 + cover[at1 + x]!) | 0;
        const a = shown(sum1) & (-sum1 >> 31);
        const r = (r0 + Math.imul(a, r1)) >> 16;
        const g = (g0 + Math.imul(a, g1)) >> 16;
        const b = (b0 + Math.imul(a, b1)) >> 16;
        pixels[line + x] = 0xff000000 | (b << 16) | (g << 8) | r;
      }
      return;
    }
    for (let x = low; x <= high; x++) {
      sum1 = (sum1 + cover[at1 + x]!) | 0;
      sum2 = (sum2 + cover[at2 + x]!) | 0;
      sum3 = (sum3 + cover[at3 + x]!) | 0;
      const sum = (sum1 + sum2 + sum3) | 0;
      const scale = shown(sum) / (sum | ((sum - 1) >>> 31)); // of nothing there is nothing to scale
      const r = (Math.imul(sum1, r1) + Math.imul(sum2, r2) + Math.imul(sum3, r3)) | 0;
      const g = (Math.imul(sum1, g1) + Math.imul(sum2, g2) + Math.imul(sum3, g3)) | 0;
      const b = (Math.imul(sum1, b1) + Math.imul(sum2, b2) + Math.imul(sum3, b3)) | 0;
      pixels[line + x] = 0xff000000 | (((b0 + b * scale) >> 16) << 16) | (((g0 + g * scale) >> 16) << 8) | ((r0 + r * scale) >> 16);
    }
  }

  /** The same for any number of categories. */
  #many(line: number, present: readonly number[], background: Ink): void {
    const pixels = this.pixels;
    const cover = this.#cover;
    const places = present.map((category) => category * this.#stride + PAD);
    const inks = present.map((category) => this.#inks[category]!);
    const sums = places.map((at) => {
      let sum = 0;
      for (let x = this.#low - PAD; x < this.#low; x++) sum += cover[at + x]!;
      return sum;
    });
    for (let x = this.#low; x <= this.#high; x++) {
      let sum = 0;
      let r = 0;
      let g = 0;
      let b = 0;
      for (let k = 0; k < places.length; k++) {
        const part = sums[k]! += cover[places[k]! + x]!;
        if (part === 0) continue;
        const ink = inks[k]!;
        sum += part;
        r += part * ink.r;
        g += part * ink.g;
        b += part * ink.b;
      }
      if (sum === 0) continue;
      const inked = Math.min(ONE, Math.max(FAINT, sum)) / ONE;
      const scale = inked / sum;
      const rest = 1 - inked;
      pixels[line + x] = packed(r * scale + background.r * rest, g * scale + background.g * rest, b * scale + background.b * rest);
    }
  }

  /** Dims the pixels at the left of wide events. */
  #mark(line: number, left: Uint8Array | null): void {
    for (let i = 0; i < this.#edged; i++) {
      const edge = this.#edges[i]!;
      if (left?.[edge & 255] === 1) continue;
      const at = line + (edge >> 8);
      const pixel = this.pixels[at]!;
      if ((pixel >>> 24) !== 0xff) continue; // dimmed already: several events begin here
      this.pixels[at] = (packed((pixel & 255) * DIM, ((pixel >>> 8) & 255) * DIM, ((pixel >>> 16) & 255) * DIM) & 0xffffff) | 0xfe000000;
    }
    for (let i = 0; i < this.#edged; i++) this.pixels[line + (this.#edges[i]! >> 8)]! |= 0xff000000;
  }

  /** Notes which pixels a patterned category holds for the most part; whether there is any. */
  #patterns(present: readonly number[]): boolean {
    const cover = this.#cover;
    let any = false;
    for (const category of present) {
      if (this.#patterned[category] !== 1) continue;
      if (!any) this.#over.fill(0, this.#low, this.#high + 1);
      any = true;
      const at = category * this.#stride + PAD;
      let sum = 0;
      for (let x = this.#low - PAD; x < this.#low; x++) sum += cover[at + x]!;
      for (let x = this.#low; x <= this.#high; x++) {
        sum += cover[at + x]!;
        if (sum >= HALF) this.#over[x] = category + 1;
      }
    }
    return any;
  }

  #hatch(line: number, row: number, hatch: Ink & { readonly a: number }): void {
    const pixels = this.pixels;
    const masks = this.#masks;
    const over = this.#over;
    const keep = 1 - hatch.a;
    const [r, g, b] = [hatch.r * hatch.a, hatch.g * hatch.a, hatch.b * hatch.a];
    const low = this.#low;
    let column = (low + this.phase) % 6;
    for (let x = low; x <= this.#high; x++) {
      const category = over[x]!;
      if (category !== 0 && masks[(category - 1) * 36 + row * 6 + column] === 1) {
        const pixel = pixels[line + x]!;
        pixels[line + x] = packed((pixel & 255) * keep + r, ((pixel >>> 8) & 255) * keep + g, ((pixel >>> 16) & 255) * keep + b);
      }
      if (++column === 6) column = 0;
    }
  }
}

/** A cover as it is shown: not fainter than can be seen, not more than the whole pixel. */
function shown(sum: number): number {
  const over = (sum - ONE) | 0;
  const most = (sum - (over & ~(over >> 31))) | 0;
  const less = (FAINT - most) | 0;
  return (most + (less & ~(less >> 31))) | 0;
}

function packed(r: number, g: number, b: number): number {
  return (0xff000000 | ((b + 0.5) << 16) | ((g + 0.5) << 8) | (r + 0.5)) >>> 0;
}

/**
 * Draws rows of time into the pixels of an ImageData. Each pixel's color is the mean over the time it covers: a share
 * of each category, the rest background.
 */
import type { Pattern } from "../theme/categories.ts";
import { Cover, ONE } from "./cover.ts";

/** What there is at all must be seen: a pixel with anything in it is at least this much inked. */
export const FAINTEST = 0.22;
const HALF = ONE >> 1;
const FAINT = Math.round(FAINTEST * ONE);
const DIM = 0.66;
/** As much over one pixel as whole numbers of 32 bits can weigh. */
const MOST = 100 * ONE;
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
  /** How far the patterns are moved to the left, so that they go along with what they are of. */
  phase = 0;
  readonly cover: Cover;
  readonly #inks: readonly Ink[];
  readonly #patterned: Uint8Array;
  readonly #masks: Uint8Array;
  /** Per pixel the category, plus 1, whose pattern is drawn over it; those pixels in order, and their colors under it. */
  readonly #over: Uint8Array;
  readonly #places: Uint32Array;
  readonly #dyed: Uint32Array;
  #dyes = 0;

  constructor(width: number, height: number, inks: readonly Ink[], patterns: readonly Pattern[]) {
    this.width = width;
    this.height = height;
    this.bytes = new Uint8ClampedArray(width * height * 4);
    this.pixels = new Uint32Array(this.bytes.buffer);
    this.cover = new Cover(width, inks.length);
    this.#inks = inks;
    this.#over = new Uint8Array(width);
    this.#places = new Uint32Array(width);
    this.#dyed = new Uint32Array(width);
    this.#masks = new Uint8Array(inks.length * 36);
    patterns.forEach((pattern, category) => {
      for (let i = 0; i < 36; i++) this.#masks[category * 36 + i] = MASKS[pattern](i % 6, Math.floor(i / 6)) ? 1 : 0;
    });
    this.#patterned = Uint8Array.from(patterns, (pattern) => (pattern === "none" ? 0 : 1));
  }

  /** Begins a picture, or the columns from `first` to before `beyond` of one: what lies next to them is left as it is. */
  restart(first = 0, beyond = this.width): void {
    this.cover.restart(first, beyond);
  }

  /** Moves the whole picture to the left (or right, where below 0): the columns that come in have to be drawn. */
  shift(by: number): void {
    if (by > 0) this.pixels.copyWithin(0, by);
    else this.pixels.copyWithin(-by, 0);
  }

  /** Fills lines, to before `bottom`. */
  ground(top: number, bottom: number, ink: Ink): void {
    const color = packed(ink.r, ink.g, ink.b);
    const from = Math.max(0, top);
    const to = Math.min(this.height, bottom);
    if (this.cover.first === 0 && this.cover.beyond === this.width) {
      if (from < to) this.pixels.fill(color, from * this.width, to * this.width);
    } else for (let y = from; y < to; y++) this.pixels.fill(color, y * this.width + this.cover.first, y * this.width + this.cover.beyond);
  }

  /** An upright line over what is drawn, as far as it is in the columns that are. */
  upright(x: number, thick: number, top: number, bottom: number, ink: Ink): void {
    const color = packed(ink.r, ink.g, ink.b);
    const from = Math.max(this.cover.first, x);
    const to = Math.min(this.cover.beyond, x + thick);
    if (from >= to) return;
    for (let y = Math.max(0, top); y < Math.min(this.height, bottom); y++) this.pixels.fill(color, y * this.width + from, y * this.width + to);
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
    const [first, beyond] = [this.cover.first, this.cover.beyond];
    const line = from * width;
    pixels.fill(packed(background.r, background.g, background.b), line + first, line + beyond);
    const present = left ? this.cover.present.filter((category) => left[category] !== 1) : this.cover.present;
    if (present.length > 0 && this.cover.high >= this.cover.low) {
      const drawn = present.length <= 3 ? this.#few(line, present, background) : present.length === 4 && this.#four(line, present, background);
      if (!drawn) this.#many(line, present, background);
    }
    this.#mark(line, left);
    const hatched = height >= PATTERN_FROM_PX && hatch.a > 0 && this.cover.high >= this.cover.low && this.#patterns(present);
    if (!hatched) {
      for (let y = from + 1; y < to; y++) pixels.copyWithin(y * width + first, line + first, line + beyond);
      return;
    }
    this.#dye(line, hatch);
    // Six lines hold every phase of every pattern; the others are copies of those.
    const lines = Math.min(6, to - from);
    for (let y = lines - 1; y >= 0; y--) {
      const target = (from + y) * width;
      if (y > 0) pixels.copyWithin(target + first, line + first, line + beyond);
      this.#hatch(target, (from + y - top) % 6);
    }
    for (let y = from + 6; y < to; y++) pixels.copyWithin(y * width + first, (y - 6) * width + first, (y - 6) * width + beyond);
  }

  /** The colors of a row of at most three categories, in whole numbers; false where too much is drawn over one pixel for that. */
  #few(line: number, present: readonly number[], background: Ink): boolean {
    const pixels = this.pixels;
    const cover = this.cover.differences;
    const nothing = this.cover.place(this.#inks.length);
    const [ink1, ink2, ink3] = slots(3, (slot) => this.#inks[present[slot] ?? -1] ?? background);
    const [place1, place2, place3] = slots(3, (slot) => (slot < present.length ? this.cover.place(present[slot]!) : nothing));
    // Each number is made whole once, out here: in the loop the engine would look at its kind again for every pixel.
    const at1 = place1! | 0;
    const at2 = place2! | 0;
    const at3 = place3! | 0;
    // How much each part of a category moves the color away from the background's, in 65,536ths.
    const r1 = (ink1!.r - background.r) | 0;
    const g1 = (ink1!.g - background.g) | 0;
    const b1 = (ink1!.b - background.b) | 0;
    const r2 = (ink2!.r - background.r) | 0;
    const g2 = (ink2!.g - background.g) | 0;
    const b2 = (ink2!.b - background.b) | 0;
    const r3 = (ink3!.r - background.r) | 0;
    const g3 = (ink3!.g - background.g) | 0;
    const b3 = (ink3!.b - background.b) | 0;
    const r0 = (background.r * ONE + HALF) | 0;
    const g0 = (background.g * ONE + HALF) | 0;
    const b0 = (background.b * ONE + HALF) | 0;
    const low = this.cover.low | 0;
    const high = this.cover.high | 0;
    let sum1 = this.cover.before(at1) | 0;
    let sum2 = this.cover.before(at2) | 0;
    let sum3 = this.cover.before(at3) | 0;
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
      return true;
    }
    for (let x = low; x <= high; x++) {
      sum1 = (sum1 + cover[at1 + x]!) | 0;
      sum2 = (sum2 + cover[at2 + x]!) | 0;
      sum3 = (sum3 + cover[at3 + x]!) | 0;
      const sum = (sum1 + sum2 + sum3) | 0;
      if (sum > MOST) return false;
      const scale = shown(sum) / (sum | ((sum - 1) >>> 31)); // of nothing there is nothing to scale
      const r = (Math.imul(sum1, r1) + Math.imul(sum2, r2) + Math.imul(sum3, r3)) | 0;
      const g = (Math.imul(sum1, g1) + Math.imul(sum2, g2) + Math.imul(sum3, g3)) | 0;
      const b = (Math.imul(sum1, b1) + Math.imul(sum2, b2) + Math.imul(sum3, b3)) | 0;
      pixels[line + x] = 0xff000000 | (((b0 + b * scale) >> 16) << 16) | (((g0 + g * scale) >> 16) << 8) | ((r0 + r * scale) >> 16);
    }
    return true;
  }

  /** The same for four, which is what a device has (computing, communication, copies, fills): written out, for a loop over them would cost as much again. */
  #four(line: number, present: readonly number[], background: Ink): boolean {
    const pixels = this.pixels;
    const cover = this.cover.differences;
    const nothing = this.cover.place(this.#inks.length);
    const [ink1, ink2, ink3, ink4] = slots(4, (slot) => this.#inks[present[slot] ?? -1] ?? background);
    const [place1, place2, place3, place4] = slots(4, (slot) => (slot < present.length ? this.cover.place(present[slot]!) : nothing));
    const at1 = place1! | 0;
    const at2 = place2! | 0;
    const at3 = place3! | 0;
    const at4 = place4! | 0;
    const r1 = (ink1!.r - background.r) | 0;
    const g1 = (ink1!.g - background.g) | 0;
    const b1 = (ink1!.b - background.b) | 0;
    const r2 = (ink2!.r - background.r) | 0;
    const g2 = (ink2!.g - background.g) | 0;
    const b2 = (ink2!.b - background.b) | 0;
    const r3 = (ink3!.r - background.r) | 0;
    const g3 = (ink3!.g - background.g) | 0;
    const b3 = (ink3!.b - background.b) | 0;
    const r4 = (ink4!.r - background.r) | 0;
    const g4 = (ink4!.g - background.g) | 0;
    const b4 = (ink4!.b - background.b) | 0;
    const r0 = (background.r * ONE + HALF) | 0;
    const g0 = (background.g * ONE + HALF) | 0;
    const b0 = (background.b * ONE + HALF) | 0;
    const low = this.cover.low | 0;
    const high = this.cover.high | 0;
    let sum1 = this.cover.before(at1) | 0;
    let sum2 = this.cover.before(at2) | 0;
    let sum3 = this.cover.before(at3) | 0;
    let sum4 = this.cover.before(at4) | 0;
    for (let x = low; x <= high; x++) {
      sum1 = (sum1 + cover[at1 + x]!) | 0;
      sum2 = (sum2 + cover[at2 + x]!) | 0;
      sum3 = (sum3 + cover[at3 + x]!) | 0;
      sum4 = (sum4 + cover[at4 + x]!) | 0;
      const sum = (sum1 + sum2 + sum3 + sum4) | 0;
      if (sum > MOST) return false;
      const scale = shown(sum) / (sum | ((sum - 1) >>> 31));
      const r = (Math.imul(sum1, r1) + Math.imul(sum2, r2) + Math.imul(sum3, r3) + Math.imul(sum4, r4)) | 0;
      const g = (Math.imul(sum1, g1) + Math.imul(sum2, g2) + Math.imul(sum3, g3) + Math.imul(sum4, g4)) | 0;
      const b = (Math.imul(sum1, b1) + Math.imul(sum2, b2) + Math.imul(sum3, b3) + Math.imul(sum4, b4)) | 0;
      pixels[line + x] = 0xff000000 | (((b0 + b * scale) >> 16) << 16) | (((g0 + g * scale) >> 16) << 8) | ((r0 + r * scale) >> 16);
    }
    return true;
  }

  /** The same for any number of categories, and for any number of them over one pixel. */
  #many(line: number, present: readonly number[], background: Ink): void {
    const pixels = this.pixels;
    const cover = this.cover.differences;
    const places = present.map((category) => this.cover.place(category));
    const inks = present.map((category) => this.#inks[category]!);
    const sums = places.map((at) => this.cover.before(at));
    for (let x = this.cover.low; x <= this.cover.high; x++) {
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
    for (let i = 0; i < this.cover.edged; i++) {
      const edge = this.cover.edges[i]!;
      if (left?.[edge & 255] === 1) continue;
      const at = line + (edge >> 8);
      const pixel = this.pixels[at]!;
      if ((pixel >>> 24) !== 0xff) continue; // dimmed already: several events begin here
      this.pixels[at] = (packed((pixel & 255) * DIM, ((pixel >>> 8) & 255) * DIM, ((pixel >>> 16) & 255) * DIM) & 0xffffff) | 0xfe000000;
    }
    for (let i = 0; i < this.cover.edged; i++) this.pixels[line + (this.cover.edges[i]! >> 8)]! |= 0xff000000;
  }

  /** Notes which pixels a patterned category holds for the most part; whether there is any. */
  #patterns(present: readonly number[]): boolean {
    const cover = this.cover.differences;
    let any = false;
    for (const category of present) {
      if (this.#patterned[category] !== 1) continue;
      if (!any) this.#over.fill(0, this.cover.low, this.cover.high + 1);
      any = true;
      const at = this.cover.place(category);
      let sum = this.cover.before(at);
      for (let x = this.cover.low; x <= this.cover.high; x++) {
        sum += cover[at + x]!;
        if (sum >= HALF) this.#over[x] = category + 1;
      }
    }
    return any;
  }

  /** The colors of the pixels that have a pattern, where it is drawn over them. */
  #dye(line: number, hatch: Ink & { readonly a: number }): void {
    const pixels = this.pixels;
    const over = this.#over;
    const places = this.#places;
    const dyed = this.#dyed;
    const keep = Math.round((1 - hatch.a) * 256);
    const [r, g, b] = [hatch.r, hatch.g, hatch.b].map((each) => Math.round(each * hatch.a * 256) + 128) as [number, number, number];
    const high = this.cover.high;
    let count = 0;
    for (let x = this.cover.low; x <= high; x++) {
      if (over[x] === 0) continue;
      const pixel = pixels[line + x]!;
      dyed[count] = 0xff000000 | (((Math.imul((pixel >>> 16) & 255, keep) + b) >> 8) << 16) | (((Math.imul((pixel >>> 8) & 255, keep) + g) >> 8) << 8) | ((Math.imul(pixel & 255, keep) + r) >> 8);
      places[count++] = x;
    }
    this.#dyes = count;
  }

  #hatch(line: number, row: number): void {
    const pixels = this.pixels;
    const masks = this.#masks;
    const over = this.#over;
    const places = this.#places;
    const dyed = this.#dyed;
    const phase = this.phase;
    for (let i = 0; i < this.#dyes; i++) {
      const x = places[i]!;
      if (masks[(over[x]! - 1) * 36 + row * 6 + ((x + phase) % 6)] === 1) pixels[line + x] = dyed[i]!;
    }
  }
}

function slots<T>(count: number, of: (slot: number) => T): T[] {
  return Array.from({ length: count }, (_, slot) => of(slot));
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

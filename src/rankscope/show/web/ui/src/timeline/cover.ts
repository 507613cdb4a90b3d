/**
 * How much of each pixel of one row is covered, by category.
 *
 * A frame draws some hundred thousand rectangles, most of them about a pixel wide, so what costs is not arithmetic but
 * branches that cannot be foreseen. A row is therefore held as differences: a rectangle adds to the pixels where it
 * begins and takes away where it ends, however wide it is, and the sum from the left is what is covered. All of it is in
 * whole 65,536ths of a pixel: what is added is taken away again to the last bit, and no object is made per rectangle.
 */

/** A fully covered pixel. */
export const ONE = 1 << 16;
/** Padding next to the picture, so that rectangles at its edges need no check. */
export const PAD = 2;
/** The width of an event without duration. */
const SLIVER = 64;
/** Events this wide get an edge on their left, so that neighbors of one color stay apart. */
const EDGE = 4 * ONE;
/** Makes a fraction of every number, and keeps its sign. */
const SMALLEST = 2 ** -200;

export class Cover {
  readonly width: number;
  readonly stride: number;
  /** What is covered, as differences: category × stride + PAD + x. Behind the last category lies one that stays empty. */
  readonly differences: Int32Array;
  /** Categories that the row holds. */
  readonly present: number[] = [];
  /** Where events begin that are wide enough for an edge: x × 256 + category; `edged` of them. */
  readonly edges: Int32Array;
  edged = 0;
  /** The columns that are drawn, from `first` to before `beyond`; the row holds something from `low` to `high`. */
  first = 0;
  beyond: number;
  low = 0;
  high = -1;
  /** How many rectangles were drawn since `restart`. */
  rectangles = 0;
  readonly #met: Uint8Array;

  constructor(width: number, categories: number) {
    this.width = width;
    this.stride = width + 2 * PAD + 2;
    this.differences = new Int32Array(this.stride * (categories + 1));
    this.edges = new Int32Array(4 * width + 64);
    this.beyond = width;
    this.#met = new Uint8Array(categories);
  }

  /** Begins a picture, or the columns from `first` to before `beyond` of one. */
  restart(first: number, beyond: number): void {
    this.first = first;
    this.beyond = beyond;
    this.rectangles = 0;
  }

  /** Where a category's differences begin: those of the first pixel. */
  place(category: number): number {
    return category * this.stride + PAD;
  }

  /** What is drawn over the pixel before `low`, of the category whose differences begin at `place`. */
  before(place: number): number {
    let sum = 0;
    for (let x = this.low - PAD; x < this.low; x++) sum += this.differences[place + x]!;
    return sum;
  }

  /** Begins a row; what the last one held is forgotten. */
  begin(): void {
    const stride = this.stride;
    for (const category of this.present) {
      this.#met[category] = 0;
      this.differences.fill(0, category * stride, (category + 1) * stride);
    }
    this.present.length = 0;
    this.edged = 0;
    this.low = this.beyond;
    this.high = this.first - 1;
  }

  /** From x0 to x1 (pixels, fractions count), a category holds this share of the time. */
  span(x0: number, x1: number, share: number, category: number, edged: boolean): void {
    const [first, beyond] = [this.first, this.beyond];
    if (x1 <= first || x0 >= beyond || !(share > 0) || category >= this.#met.length) return;
    this.rectangles++;
    this.#meet(category);
    const left = ((x0 < first ? first : x0) * ONE) | 0;
    const right = Math.max(left + 1, ((x1 > beyond ? beyond : x1) * ONE) | 0);
    const whole = Math.max(1, Math.round(share * ONE));
    const cover = this.differences;
    const base = category * this.stride + PAD;
    const [from, to] = [left >> 16, right >> 16];
    const [after, rest] = [Math.round(((left & (ONE - 1)) * whole) / ONE), Math.round(((right & (ONE - 1)) * whole) / ONE)];
    // A tiny share is visible all the same.
    const least = from === to && rest === after ? 1 : 0;
    cover[base + from]! += whole - after + least;
    cover[base + from + 1]! += after - least;
    cover[base + to]! -= whole - rest;
    cover[base + to + 1]! -= rest;
    if (edged && x0 >= first && (x1 - x0) * ONE >= EDGE) this.edges[this.edged++] = (from << 8) | category;
    if (from < this.low) this.low = from;
    if (to > this.high) this.high = Math.min(to, beyond - 1);
  }

  /** Many bins of one width at once: bin b is from b × step + offset (pixels) on, busy for its part of `whole`. */
  bins(bins: Uint32Array, categories: Uint8Array, busy: Float64Array, from: number, to: number, offset: number, step: number, whole: number): void {
    if (from >= to) return;
    if (step > 1 || step < 0.25) {
      for (let i = from; i < to; i++) this.span(bins[i]! * step + offset, (bins[i]! + 1) * step + offset, busy[i]! / whole, categories[i]!, false);
      return;
    }
    // A pixel wide at most, and a fourth of one at least: a bin is in one pixel or in two.
    const cover = this.differences;
    const met = this.#met;
    const stride = this.stride;
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
      amount += (amount - 1) >>> 31; // never 0
      // How much of the bin is in the next pixel, in 16,384ths.
      let beyond = (x & (ONE - 1)) + over;
      beyond &= ~(beyond >> 31);
      const second = Math.imul(amount, Math.imul(beyond >> 1, inverse) >> 14) >> 14;
      const at = Math.imul(category, stride) + (x >> 16);
      cover[at]! += amount - second;
      cover[at + 1]! += second + second - amount;
      cover[at + 2]! -= second;
    }
    this.rectangles += to - from;
    this.low = Math.max(this.first, Math.min(this.low, Math.floor(bins[from]! * step + offset)));
    this.high = Math.min(this.beyond - 1, Math.max(this.high, Math.floor((bins[to - 1]! + 1) * step + offset)));
  }

  /** Many events at once, sorted by start; each is cut to [low, high). An instant `at` is at (at - origin) × scale pixels. */
  events(starts: Float64Array, ends: Float64Array, categories: Uint8Array, from: number, to: number, origin: number, scale: number, low: number, high: number): void {
    const cover = this.differences;
    const met = this.#met;
    const stride = this.stride | 0;
    const edges = this.edges;
    const fine = +scale * ONE;
    const begin = +origin;
    const lowest = +low;
    const highest = +high;
    const leftmost = this.first * ONE;
    const rightmost = this.beyond * ONE;
    let edged = this.edged | 0;
    let drawn = 0;
    let least = this.low | 0;
    let most = this.high | 0;
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
    this.edged = Math.min(edged, edges.length - 1);
    this.low = least;
    this.high = Math.min(most, this.beyond - 1);
  }

  #meet(category: number): void {
    if (this.#met[category] !== 0) return;
    this.#met[category] = 1;
    this.present.push(category);
  }
}

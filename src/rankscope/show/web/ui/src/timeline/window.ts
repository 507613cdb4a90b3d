/** The stretch of time visible and how it moves: all in nanoseconds since the run's origin, as doubles. */
export interface Window {
  readonly from: number;
  readonly to: number;
}

/** No closer than this: a nanosecond is then ten pixels wide or more. */
const CLOSEST_NS = 64;
/** How much of the view may extend beyond either end of the run. */
const MARGIN = 0.04;

export function whole(span: number): Window {
  return { from: -span * MARGIN / 2, to: span * (1 + MARGIN / 2) };
}

export function clamped(window: Window, span: number): Window {
  const length = Math.min(Math.max(window.to - window.from, CLOSEST_NS), span * (1 + MARGIN));
  const low = -Math.min(span * MARGIN / 2, length * 0.25);
  const high = span - length - low;
  const middle = (window.from + window.to) / 2;
  const from = Math.min(Math.max(middle - length / 2, Math.min(low, high)), Math.max(low, high));
  return { from, to: from + length };
}

/** Zooms by a factor (below 1: closer) so that the instant at the cursor stays under it. */
export function zoomed(window: Window, factor: number, at: number, span: number): Window {
  const length = window.to - window.from;
  const next = Math.min(Math.max(length * factor, CLOSEST_NS), span * (1 + MARGIN));
  const share = (at - window.from) / length;
  return clamped({ from: at - share * next, to: at + (1 - share) * next }, span);
}

export function panned(window: Window, by: number, span: number): Window {
  return clamped({ from: window.from + by, to: window.to + by }, span);
}

/** A stretch with some room around it. */
export function around(start: number, end: number, span: number, room = 0.15): Window {
  const length = Math.max(end - start, CLOSEST_NS / 2);
  return clamped({ from: start - length * room, to: end + length * room }, span);
}

/** The level whose bins are at most a pixel wide; below 0 where even the finest bins are wider. */
export function levelFor(perPixel: number, baseBin: number, factor: number, levels: number): number {
  const level = Math.floor(Math.log(perPixel / baseBin) / Math.log(factor) + 1e-9);
  return Math.min(level, levels - 1);
}

export interface Tick {
  readonly at: number;
  readonly label: boolean;
}

/** Round instants between the ends of the view, every `step` of them. */
export function ticks(window: Window, width: number, apart = 110): { step: number; at: number[] } {
  const rough = ((window.to - window.from) / Math.max(1, width)) * apart;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? 10 * power;
  const at: number[] = [];
  for (let tick = Math.ceil(window.from / step) * step; tick <= window.to && at.length < 200; tick += step) at.push(tick);
  return { step, at };
}

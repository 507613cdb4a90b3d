/** One counter in its row: a band from the least to the most in each stretch, on the scale of the whole run. */
import { formatBytes, grouped } from "../format/units.ts";
import type { CounterPart } from "./counters.ts";
import type { Palette } from "./frame.ts";
import { lowerBound } from "./tiles.ts";
import type { Window } from "./window.ts";

export function drawCounter(c: CanvasRenderingContext2D, part: CounterPart, index: number, top: number, size: number, window: Window, width: number, palette: Palette): void {
  const meta = part.meta[index];
  if (!meta) return;
  const first = lowerBound(part.counter, index, 0, part.counter.length);
  const last = lowerBound(part.counter, index + 1, first, part.counter.length);
  const scale = width / (window.to - window.from);
  const least = Math.min(0, meta.low);
  const tall = meta.high > least ? (size - 3) / (meta.high - least) : 0;
  const y = (value: number): number => top + size - 1 - (value - least) * tall;
  let i = Math.max(first, lowerBound(part.at, window.from, first, last) - 1);
  c.fillStyle = palette.muted;
  c.globalAlpha = 0.35;
  c.beginPath();
  const begun = i;
  c.moveTo(Math.max(0, ((part.at[i] ?? 0) - window.from) * scale), top + size - 1);
  for (; i < last && part.at[i]! < window.to; i++) {
    const x0 = Math.max(0, (part.at[i]! - window.from) * scale);
    const next = i + 1 < last ? part.at[i + 1]! : window.to;
    const x1 = Math.min(width, (next - window.from) * scale);
    c.lineTo(x0, y(part.high[i]!));
    c.lineTo(x1, y(part.high[i]!));
  }
  if (i > begun) {
    const end = i < last ? part.at[i]! : window.to;
    c.lineTo(Math.min(width, (end - window.from) * scale), top + size - 1);
    c.closePath();
    c.fill();
  }
  c.globalAlpha = 1;
  const text = `max ${meta.unit === "bytes" ? formatBytes(meta.high) : grouped(meta.high)}`;
  c.fillStyle = palette.text;
  c.textAlign = "right";
  c.fillText(text, width - 4, top + 8);
  c.textAlign = "left";
}

/** What a finding says of the selected event, written at the event; the idle gap that the event ends is marked. */
import { shownName } from "../format/text.ts";
import { formatDuration } from "../format/units.ts";
import type { Palette } from "./frame.ts";
import type { Model } from "./model.ts";
import { screenTop, standIn } from "./rows.ts";

const LINE = 15;
const PAD = 7;
const WIDEST = 340;
/** From the event to the words. */
const APART = 10;
type Context = CanvasRenderingContext2D;

export class Callout {
  readonly #model: Model;

  constructor(model: Model) {
    this.#model = model;
  }

  /** From the first row's place in the picture. */
  draw(c: Context, scroll: number, palette: Palette): void {
    const { detail, said, layout, rows, width, height } = this.#model;
    if (!detail || said.length === 0) return;
    const row = standIn(layout, rows, detail.lane);
    if (row < 0) return;
    const [top, size] = [screenTop(rows, row, scroll), rows.size[row]!];
    if (top + size < 0 || top > height) return;
    const [x0, x1] = [this.#x(detail.start_ns), this.#x(detail.end_ns)];
    if (x1 < 0 || x0 > width) return;
    const since = said.find(({ since_ns: at }) => at !== null)?.since_ns ?? null;
    if (since !== null) this.#gap(c, this.#x(since), x0, top + size / 2, detail.start_ns - since, palette);
    this.#words(c, said.map(({ reason }) => shownName(reason, 300)), Math.min(width, Math.max(0, (Math.max(0, x0) + Math.min(width, x1)) / 2)), top, size, palette);
  }

  #x(at: number): number {
    const { window, width } = this.#model;
    return ((at - window.from) / (window.to - window.from)) * width;
  }

  /** A double arrow over the gap, with its length where there is room. */
  #gap(c: Context, x0: number, x1: number, y: number, length: number, palette: Palette): void {
    for (const [wide, ink] of [[4, palette.surface], [2, palette.select]] as const) {
      c.lineWidth = wide;
      c.strokeStyle = ink;
      c.beginPath();
      c.moveTo(x0, y - 6);
      c.lineTo(x0, y + 6);
      c.moveTo(x0, y);
      c.lineTo(x1, y);
      c.moveTo(x1 - 5, y - 4);
      c.lineTo(x1, y);
      c.lineTo(x1 - 5, y + 4);
      c.stroke();
    }
    const text = `idle ${formatDuration(length, 3)}`;
    const wide = c.measureText(text).width + 8;
    if (x1 - x0 < wide + 16) return;
    const at = (Math.max(0, x0) + x1) / 2;
    c.fillStyle = palette.surface;
    c.fillRect(at - wide / 2, y - 8, wide, 16);
    c.fillStyle = palette.text;
    c.textAlign = "center";
    c.fillText(text, at, y + 0.5);
    c.textAlign = "left";
  }

  /** Below the event, or above it where there is no room. */
  #words(c: Context, reasons: readonly string[], x: number, top: number, size: number, palette: Palette): void {
    const { width, height } = this.#model;
    const lines = reasons.flatMap((reason) => wrapped(`${reason}.`, Math.min(WIDEST, width - 24), (text) => c.measureText(text).width));
    const wide = Math.max(...lines.map((line) => c.measureText(line).width)) + 2 * PAD;
    const tall = lines.length * LINE + 2 * PAD - 4;
    const left = Math.min(width - wide - 4, Math.max(4, x - wide / 2));
    const below = top + size + APART + tall < height;
    const y = below ? top + size + APART : Math.max(2, top - APART - tall);
    c.fillStyle = palette.surface;
    c.strokeStyle = palette.select;
    c.lineWidth = 1.5;
    c.beginPath();
    c.roundRect(left, y, wide, tall, 4);
    c.fill();
    c.stroke();
    const tip = Math.min(left + wide - 10, Math.max(left + 10, x));
    c.fillStyle = palette.select;
    c.beginPath();
    c.moveTo(tip - 5, below ? y : y + tall);
    c.lineTo(tip + 5, below ? y : y + tall);
    c.lineTo(tip, below ? top + size + 2 : top - 2);
    c.closePath();
    c.fill();
    c.fillStyle = palette.text;
    lines.forEach((line, index) => c.fillText(line, left + PAD, y + PAD + LINE * (index + 0.5) - 2));
  }
}

/** A sentence in lines no wider than so many pixels. */
export function wrapped(text: string, widest: number, measure: (text: string) => number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = lines.length > 0 ? `${lines.at(-1)} ${word}` : word;
    if (lines.length === 0) lines.push(word);
    else if (measure(longer) <= widest) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

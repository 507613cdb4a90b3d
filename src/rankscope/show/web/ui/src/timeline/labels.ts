/** The canvas above the pixels: ruler, steps, names, counters, what is selected and measured, lines of a collective. */
import { FONT } from "../charts/font.ts";
import { foldedName, labelName } from "../format/short_name.ts";
import { shownName } from "../format/text.ts";
import { formatDuration, formatTick } from "../format/units.ts";
import { categoryOf } from "./covering.ts";
import { Callout } from "./callout.ts";
import type { Scene } from "./draw.ts";
import { drawCounter } from "./counter_row.ts";
import { Flows } from "./flows.ts";
import { MOVING, RULER, type Frame, type Palette } from "./frame.ts";
import { groupText } from "./groups.ts";
import type { Model } from "./model.ts";
import { drawPath } from "./path_line.ts";
import { isOfRank, RowKind, upperPart } from "./rows.ts";
import { coveredRuns, lowerBound, type BinTile, type EventTile } from "./tiles.ts";
import { ticks } from "./window.ts";

const NARROWEST = 26;
const CHARACTER = 6.1;
const MOST = 320;
const LONGEST_NAME = 256;
/** Widths that are kept. */
const MEASURED = 20_000;

interface Words { readonly text: string; readonly width: number }

export class Labels {
  readonly #model: Model;
  readonly #context: CanvasRenderingContext2D | null;
  readonly #flows: Flows;
  readonly #callout: Callout;
  readonly #texts = new Map<number, string>();
  readonly #measured = new Map<number, Words>();
  #color = "";
  #left = 0;
  /** The middle of the row's upper part and of its lower; one and the same where it is not split. */
  #upper = 0;
  #lower = 0;
  #split = false;
  /** Where the last label in each part ends: events of a rank's own lane overlap, their words must not. */
  #upperFree = 0;
  #lowerFree = 0;
  #palette: Palette | null = null;

  constructor(model: Model, canvas: HTMLCanvasElement) {
    this.#model = model;
    this.#context = canvas.getContext("2d");
    this.#flows = new Flows(model);
    this.#callout = new Callout(model);
  }

  draw(frame: Frame, palette: Palette, ratio: number): void {
    const c = this.#context;
    if (!c) return;
    const { width, height } = this.#model;
    this.#palette = palette;
    this.#left = MOST;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height + RULER);
    c.font = `11px ${FONT}`;
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.direction = "ltr";
    const { pinned, pinnedHeight } = this.#model.rows;
    const rows = (top: number, bottom: number, scroll: number, first: number, last: number): void => {
      c.save();
      c.beginPath();
      c.rect(0, RULER + top, width, bottom - top);
      c.clip();
      c.translate(0, RULER - scroll);
      this.#color = "";
      this.#names(c, frame, first, last);
      this.#counters(c, first, last, palette);
      this.#nameTracks(c, first, last, palette);
      c.restore();
    };
    if (pinned > 0) rows(0, pinnedHeight, 0, 0, pinned);
    rows(pinnedHeight, height, frame.scroll, frame.first, frame.last);
    c.save();
    c.beginPath();
    c.rect(0, RULER, width, height);
    c.clip();
    if (pinned > 0) {
      c.fillStyle = palette.strong;
      c.fillRect(0, RULER + pinnedHeight - 2, width, 1);
    }
    c.translate(0, RULER);
    drawPath(c, this.#model, this.#model.rows, frame.scroll, palette);
    this.#flows.draw(c, frame.scroll, palette);
    this.#callout.draw(c, frame.scroll, palette);
    c.restore();
    this.#ruler(c, frame, palette);
    this.#measure(c, palette);
    this.#flags(c, palette);
  }

  #x(at: number): number {
    const { window, width } = this.#model;
    return ((at - window.from) / (window.to - window.from)) * width;
  }

  #ruler(c: CanvasRenderingContext2D, frame: Frame, palette: Palette): void {
    const { width, layout } = this.#model;
    c.fillStyle = palette.surface;
    c.fillRect(0, 0, width, RULER);
    const { at, labels } = this.#ticks(c);
    c.fillStyle = palette.line;
    for (const tick of at) c.fillRect(Math.round(this.#x(tick)), RULER - 8, 1, 8);
    c.fillRect(0, RULER - 1, width, 1);
    c.fillStyle = palette.muted;
    for (const { text, x } of labels) c.fillText(text, x, RULER - 9);
    const shown = this.#stepsOf(frame);
    const steps = shown?.steps ?? [];
    const note = shown && layout.ranks.length > 1 ? `steps of rank ${shown.rank}` : "";
    const most = note === "" ? width : width - c.measureText(note).width - 12;
    let free = -Infinity;
    for (const each of steps) {
      const from = this.#x(each.start);
      const to = this.#x(each.end);
      if (to < 0 || from > width) continue;
      c.fillStyle = palette.strong;
      if (from >= 0) c.fillRect(Math.round(from), 2, 1, RULER - 2);
      const label = each.step === null ? "whole file" : `step ${each.step}`;
      const x = Math.max(3, from + 4);
      // Whole or not at all: half a number is another number.
      const fits = [label, String(each.step ?? "")].find((text) => text !== "" && x + c.measureText(text).width <= Math.min(to - 2, most));
      if (x < free || fits === undefined) continue;
      c.fillStyle = palette.text;
      c.fillText(fits, x, 13);
      free = x + c.measureText(fits).width + 6;
    }
    if (free > 0 && note !== "") {
      c.textAlign = "right";
      c.fillStyle = palette.muted;
      c.fillText(note, width - 4, 13);
      c.textAlign = "left";
    }
  }

  /** Instants and their words, none over another or cut; closer together where there would be fewer than two. */
  #ticks(c: CanvasRenderingContext2D): { at: readonly number[]; labels: readonly { text: string; x: number }[] } {
    const { width, window } = this.#model;
    let best: { at: readonly number[]; labels: { text: string; x: number }[] } = { at: [], labels: [] };
    for (const apart of [110, 75, 50, 30]) {
      const { step, at } = ticks(window, width, apart);
      // Deep in, the full instant is the same for every tick: the first shows it, the others the difference.
      const deep = window.from > 0 && step < window.from / 1e4;
      const base = deep ? at[0] ?? 0 : 0;
      const labels: { text: string; x: number }[] = [];
      let free = -Infinity;
      at.forEach((tick, index) => {
        const x = Math.round(this.#x(tick)) + 4;
        const text = deep && index > 0 ? `+${formatTick(tick - base, (value) => formatDuration(value, 6))}` : formatTick(tick, (value) => formatDuration(value, deep ? 10 : 6));
        const end = x + c.measureText(text).width;
        if (x < free || end > width) return;
        labels.push({ text, x });
        free = end + 6;
      });
      if (apart === 110 || labels.length > best.labels.length) best = { at, labels };
      if (best.labels.length >= 2) break;
    }
    return best;
  }

  /** The rank whose steps the ruler names: the selected one's, else the one jumped to, else the first visible. */
  #stepsOf(frame: Frame): { rank: number; steps: Model["layout"]["ranks"][number]["steps"] } | null {
    const { layout, rows, selected, groups } = this.#model;
    if (selected) {
      const rank = layout.tracks[layout.laneTrack[selected.lane] ?? 0]?.rank;
      return layout.ranks.find((each) => each.rank === rank) ?? null;
    }
    const jumped = this.#model.jumped === null ? -1 : rows.rowOfRank[this.#model.jumped] ?? -1;
    if (jumped >= frame.first && jumped < frame.last) return layout.ranks[this.#model.jumped!] ?? null;
    let row = frame.first;
    while (!rows.dense && row + 1 < frame.last && rows.top[row]! + rows.size[row]! < frame.scroll + 12) row++; // a row that is nearly scrolled out is not the first
    if (row >= rows.length) return null;
    const of = rows.of[row]!;
    const kind = rows.kind[row];
    if (kind === RowKind.Group) return groups?.[of]?.ranks[0] ?? null;
    if (isOfRank(kind)) return layout.ranks[of] ?? null;
    const rank = layout.tracks[of]?.rank;
    return layout.ranks.find((each) => each.rank === rank) ?? null;
  }

  #names(c: CanvasRenderingContext2D, frame: Frame, first: number, last: number): void {
    const { rows } = this.#model;
    for (let row = first; row < last && this.#left > 0; row++) {
      const lane = rows.lane[row]!;
      const size = rows.size[row]!;
      if (lane < 0 || rows.kind[row] === RowKind.Counter || size < 12) continue;
      const upper = upperPart(rows, row);
      this.#split = upper > 0;
      this.#upperFree = this.#lowerFree = -Infinity;
      this.#upper = rows.top[row]! + (upper || size) / 2 + 0.5;
      this.#lower = upper === 0 ? this.#upper : size - upper >= 11 ? rows.top[row]! + (size + upper) / 2 + 0.5 : NaN;
      for (const column of frame.scene.columns) {
        const events = column.events.get(lane);
        if (events) this.#eventNames(c, frame.scene, column.start, events);
        else {
          const bins = column.bins.get(lane);
          if (bins) this.#binNames(c, frame.scene, column.binWidth, bins);
        }
      }
    }
  }

  #eventNames(c: CanvasRenderingContext2D, scene: Scene, columnStart: number, tile: EventTile): void {
    const { starts, ends, names, categories } = tile.batch;
    const { from, to } = scene.window;
    const scale = this.#model.width / (to - from);
    const shortest = NARROWEST / scale;
    for (let i = lowerBound(starts, from - tile.longest, tile.from, tile.to); i < tile.to; i++) {
      const start = starts[i]!;
      if (start >= to) return;
      if (ends[i]! - start < shortest || ends[i]! < from) continue;
      if (start < columnStart && columnStart > from) continue; // the column before has named it
      if (this.#split) this.#model.names.known.set(names[i]!, categories[i]!);
      this.#name(c, (start - from) * scale, (ends[i]! - from) * scale, names[i]!, categories[i]!);
    }
  }

  /** Bins in a row that one event covers are that event, to the bin. */
  #binNames(c: CanvasRenderingContext2D, scene: Scene, binWidth: number, tile: BinTile): void {
    const { bins, names } = tile.batch;
    const { from, to } = scene.window;
    const scale = this.#model.width / (to - from);
    const shortest = NARROWEST / scale / binWidth;
    const runs = coveredRuns(tile);
    for (let run = 0; run < runs.length && this.#left > 0; run += 2) {
      const [i, j] = [runs[run]!, runs[run + 1]!];
      const start = bins[i]! * binWidth;
      const end = (bins[j]! + 1) * binWidth;
      if (start >= to) return;
      if (end <= from || bins[j]! - bins[i]! + 1 < shortest) continue;
      const category = this.#split ? categoryOf(tile, i, j, binWidth, this.#model.names.known) : mostBusy(tile, (bins[i]! + bins[j]!) >> 1);
      if (category >= 0) this.#name(c, (start - from) * scale, (end - from) * scale, names[i]!, category); // else it could appear in the wrong part
    }
  }

  #name(c: CanvasRenderingContext2D, x0: number, x1: number, name: number, category: number): void {
    const left = Math.max(0, x0) + 4;
    const room = Math.min(x1, this.#model.width) - left - 3;
    if (room < NARROWEST - 10 || this.#left <= 0) return;
    const low = this.#split && MOVING.has(this.#model.layout.categories[category]?.category ?? "other");
    const y = low ? this.#lower : this.#upper;
    if (left < (low ? this.#lowerFree : this.#upperFree) || Number.isNaN(y)) return;
    const words = this.#words(c, name, Math.floor(room / CHARACTER));
    if (!words) return;
    this.#left--;
    const color = this.#palette?.onInk[category] ?? "#000000";
    if (color !== this.#color) c.fillStyle = this.#color = color;
    c.fillText(words.text, left, y, room);
    const free = left + Math.min(room, words.width) + 6;
    if (low) this.#lowerFree = free;
    else this.#upperFree = free;
  }

  /** A name in at most so many characters, and how wide that is; measured once, for measuring costs more than drawing. */
  #words(c: CanvasRenderingContext2D, name: number, most: number): Words | null {
    const text = this.#text(name);
    if (text === "") return null;
    const length = Math.min(text.length, Math.max(2, most));
    const key = name * LONGEST_NAME + length;
    let words = this.#measured.get(key);
    if (!words) {
      const shown = text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
      words = { text: shown, width: c.measureText(shown).width };
      if (this.#measured.size >= MEASURED) this.#measured.clear();
      this.#measured.set(key, words);
    }
    return words;
  }

  #text(name: number): string {
    let text = this.#texts.get(name);
    if (text === undefined) {
      const whole = this.#model.names.get(name);
      if (whole === undefined) return "";
      text = shownName(labelName(whole), 200);
      this.#texts.set(name, text);
    }
    return text;
  }

  /** The name of a track of one, whole, and the values of a group: there is more room than at the left. */
  #nameTracks(c: CanvasRenderingContext2D, first: number, last: number, palette: Palette): void {
    const { rows, nameTracks, names, groups } = this.#model;
    c.fillStyle = this.#color = palette.muted;
    for (let row = first; row < last; row++) {
      const group = rows.kind[row] === RowKind.Group ? groups?.[rows.of[row]!] : undefined;
      if (group) c.fillText(groupText(group, this.#model.measure, (text) => c.measureText(text).width <= this.#model.width - 8), 4, rows.top[row]! + rows.size[row]! / 2 + 0.5);
      if (rows.kind[row] !== RowKind.Name) continue;
      const name = nameTracks[rows.of[row]!]?.name ?? "";
      const missing = names.complete && names.idOf(name) === undefined;
      c.fillText(`${missing ? "no event of this run has the name " : ""}${shownName(foldedName(name), 200)}`, 4, rows.top[row]! + rows.size[row]! / 2 + 0.5);
    }
  }

  #counters(c: CanvasRenderingContext2D, first: number, last: number, palette: Palette): void {
    const { rows, layout, counters, window, width } = this.#model;
    for (let row = first; row < last; row++) {
      if (rows.kind[row] !== RowKind.Counter) continue;
      const rank = layout.ranks[rows.of[row]!];
      const part = rank && counters.of(rank.rank, window);
      if (part) drawCounter(c, part, -1 - rows.lane[row]!, rows.top[row]!, rows.size[row]!, window, width, palette);
    }
  }

  /** Notes: a flag in the ruler, a line through the rows, and the first words. */
  #flags(c: CanvasRenderingContext2D, palette: Palette): void {
    const { flags, width, height } = this.#model;
    flags.forEach(({ at, text }, index) => {
      const x = Math.round(this.#x(at));
      if (x < -200 || x > width) return;
      const next = flags[index + 1];
      const room = Math.min(width, next ? this.#x(next.at) : width) - x - 16;
      c.fillStyle = palette.select;
      c.fillRect(x, 20, 1, height + RULER);
      c.beginPath();
      c.moveTo(x, 20);
      c.lineTo(x + 10, 24);
      c.lineTo(x, 28);
      c.fill();
      let shown = shownName(text, 60);
      while (shown.length > 1 && c.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
      if (shown.length < 2) return;
      const wide = c.measureText(shown).width;
      c.fillStyle = palette.surface;
      c.fillRect(x + 12, 18, wide + 4, 14);
      c.fillStyle = palette.select;
      c.fillText(shown, x + 14, 25);
    });
  }

  #measure(c: CanvasRenderingContext2D, palette: Palette): void {
    const { measured, width, height } = this.#model;
    if (!measured) return;
    const [x0, x1] = [this.#x(measured.from), this.#x(measured.to)];
    if (x1 < 0 || x0 > width) return;
    c.globalAlpha = 0.16;
    c.fillStyle = palette.accent;
    c.fillRect(x0, RULER, x1 - x0, height);
    c.globalAlpha = 1;
    c.fillRect(Math.round(x0), 22, 1, height + RULER);
    c.fillRect(Math.round(x1), 22, 1, height + RULER);
    const text = formatDuration(measured.to - measured.from);
    const wide = c.measureText(text).width + 10;
    const middle = Math.min(width - wide - 2, Math.max(2, (Math.max(0, x0) + Math.min(width, x1) - wide) / 2));
    c.fillRect(middle, 24, wide, 17);
    c.fillStyle = palette.surface;
    c.fillText(text, middle + 5, 33);
  }
}

/** The category that is busy longest in a bin: that of the event that covers most of it. */
function mostBusy(tile: BinTile, bin: number): number {
  const { busyBins, busyCategories, busy } = tile.batch;
  let at = lowerBound(busyBins, bin, tile.busyFrom, tile.busyTo);
  while (at + 1 < tile.busyTo && busyBins[at + 1] === busyBins[at] && busy[at + 1]! > busy[at]!) at++;
  return at < tile.busyTo ? busyCategories[at]! : 0;
}

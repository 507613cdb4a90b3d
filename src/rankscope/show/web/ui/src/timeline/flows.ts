/**
 * What belongs to the selected event, as lines with arrowheads: a curve from its launch (solid), straight lines between its
 * operator and it (dotted), from a forward operator to its backward
 * (dash-dotted), and through the ranks of its collective the instants at which they arrive (solid) and end (dashed).
 */
import type { EventDetail } from "./detail.ts";
import type { Palette } from "./frame.ts";
import type { Model } from "./model.ts";
import { screenTop, standIn } from "./rows.ts";

/** More ranks than this have no frame of their own around each event. */
const MOST_FRAMES = 128;
const HEAD_PX = 7;

interface Box { readonly x0: number; readonly x1: number; readonly top: number; readonly size: number }
type Context = CanvasRenderingContext2D;

export class Flows {
  readonly #model: Model;
  #scroll = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  /** From the first row's place in the picture. */
  draw(c: Context, scroll: number, palette: Palette): void {
    const { selected, detail, rows } = this.#model;
    if (!selected || !detail) return;
    this.#scroll = scroll;
    if ((detail.collective?.members.length ?? 0) > 1) this.#collective(c, detail, palette);
    const at = this.#box(detail.lane, detail.start_ns, detail.end_ns);
    for (const link of [detail.operator, detail.launch]) {
      if (!link || (rows.rowOfLane[link.lane] ?? -1) < 0) continue; // in a folded rank it would hide other things
      const from = this.#box(link.lane, link.start_ns, link.end_ns);
      this.#outline(c, from, 1, palette);
      if (from && at) this.#link(c, from, at, link === detail.launch, palette);
    }
    for (const [link, forward] of [[detail.forward, true], [detail.backward, false]] as const) {
      if (!link || (rows.rowOfLane[link.lane] ?? -1) < 0) continue;
      const other = this.#box(link.lane, link.start_ns, link.end_ns);
      this.#outline(c, other, 1, palette);
      if (other && at) this.#autograd(c, forward ? other : at, forward ? at : other, palette);
    }
    this.#outline(c, this.#box(selected.lane, detail.start_ns, detail.end_ns), 2, palette);
    this.#outline(c, this.#boxOfRow(this.#model.rowInNameTrack(detail), detail.start_ns, detail.end_ns), 2, palette);
  }

  /** Null where it is not in the picture's rows, or below the pinned ones. */
  #box(lane: number, start: number, end: number): Box | null {
    return this.#boxOfRow(standIn(this.#model.layout, this.#model.rows, lane), start, end);
  }

  #boxOfRow(row: number, start: number, end: number): Box | null {
    const { rows, width } = this.#model;
    if (row < 0) return null;
    const [x0, x1] = [this.#x(start), this.#x(end)];
    const [top, size] = [screenTop(rows, row, this.#scroll), rows.size[row]!];
    if (row >= rows.pinned && top + size <= rows.pinnedHeight) return null;
    return { x0: Math.max(-4, x0), x1: Math.min(width + 4, Math.max(x1, x0 + 2)), top, size };
  }

  #x(at: number): number {
    const { window, width } = this.#model;
    return ((at - window.from) / (window.to - window.from)) * width;
  }

  #outline(c: Context, at: Box | null, thick: number, palette: Palette): void {
    const { width, height } = this.#model;
    if (!at || at.x1 < 0 || at.x0 > width || at.top + at.size < 0 || at.top > height) return;
    for (const [wide, ink] of [[thick + 2, palette.surface], [thick, palette.select]] as const) {
      c.lineWidth = wide;
      c.strokeStyle = ink;
      c.strokeRect(at.x0 - 0.5, at.top - 0.5, at.x1 - at.x0 + 1, at.size + 1);
    }
  }

  #link(c: Context, from: Box, to: Box, launch: boolean, palette: Palette): void {
    const down = to.top >= from.top;
    const [x0, y0, x1, y1] = [from.x0, down ? from.top + from.size : from.top, to.x0, down ? to.top : to.top + to.size];
    if (Math.abs(y1 - y0) < 1) return;
    const tip = y1 - (down ? HEAD_PX : -HEAD_PX);
    c.setLineDash(launch ? [] : [2, 3]);
    for (const [wide, ink] of [[3.5, palette.surface], [1.5, palette.select]] as const) {
      c.lineWidth = wide;
      c.strokeStyle = ink;
      c.beginPath();
      c.moveTo(x0, y0);
      if (launch) c.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, tip);
      else c.lineTo(x1, tip);
      c.stroke();
    }
    c.setLineDash([]);
    this.#head(c, x1, y1, 0, down ? 1 : -1, palette);
  }

  /** From the end of the forward operator to the start of its backward: an arc, as both can be on one lane. */
  #autograd(c: Context, from: Box, to: Box, palette: Palette): void {
    const [x0, y0, x1, y1] = [from.x1, from.top + from.size / 2, to.x0, to.top + to.size / 2];
    const high = Math.min(60, 16 + Math.abs(x1 - x0) / 8);
    c.setLineDash([8, 3, 2, 3]);
    for (const [wide, ink] of [[3.5, palette.surface], [1.5, palette.select]] as const) {
      c.lineWidth = wide;
      c.strokeStyle = ink;
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0 + (x1 - x0) / 4, y0 + high, x1 - (x1 - x0) / 4, y1 + high, x1 - HEAD_PX, y1);
      c.stroke();
    }
    c.setLineDash([]);
    this.#head(c, x1, y1, 1, 0, palette);
  }

  /** A filled arrowhead with its point at (x, y), looking along (dx, dy). */
  #head(c: Context, x: number, y: number, dx: number, dy: number, palette: Palette): void {
    const half = HEAD_PX / 2 + 0.5;
    const [bx, by] = [x - dx * HEAD_PX, y - dy * HEAD_PX];
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(bx - dy * half, by + dx * half);
    c.lineTo(bx + dy * half, by - dx * half);
    c.closePath();
    c.lineWidth = 2;
    c.strokeStyle = palette.surface;
    c.stroke();
    c.fillStyle = palette.select;
    c.fill();
  }

  #collective(c: Context, detail: EventDetail, palette: Palette): void {
    const { width } = this.#model;
    const members = detail.collective?.members ?? [];
    const boxes = members.map((member) => ({ member, at: this.#box(member.lane, member.start_ns, member.end_ns) }))
      .filter((each): each is { member: (typeof members)[number]; at: Box } => each.at !== null).sort((a, b) => a.at.top - b.at.top);
    for (const [thick, ink] of [[4, palette.surface], [2, palette.select]] as const) {
      c.lineWidth = thick;
      c.strokeStyle = ink;
      for (const side of ["start_ns", "end_ns"] as const) {
        c.setLineDash(side === "end_ns" ? [4, 4] : []);
        c.beginPath();
        boxes.forEach(({ member, at }, index) => {
          const x = Math.min(width + 20, Math.max(-20, this.#x(member[side])));
          if (index > 0) c.lineTo(x, at.top + 1);
          else c.moveTo(x, at.top + 1);
          c.lineTo(x, at.top + at.size - 1);
        });
        c.stroke();
      }
      c.setLineDash([]);
    }
    if (boxes.length > MOST_FRAMES) return;
    for (const { at } of boxes) this.#outline(c, at, 1, palette);
    // Each rank's arrival points into its event.
    for (const { member, at } of boxes) if (at.size >= 10) this.#head(c, this.#x(member.start_ns) + HEAD_PX, at.top + at.size / 2, 1, 0, palette);
  }
}

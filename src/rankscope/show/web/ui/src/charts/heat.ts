/** A field of color, ranks by steps or ranks as they sit in mesh and hosts: an outlier among a thousand shows. A cell links to its place. */
import { h, styled } from "../components/dom.ts";
import { color, isDark, onThemeChange } from "../theme/theme.ts";
import { formatDuration } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import { fitted, FONT } from "./font.ts";

export interface HeatSpec {
  readonly label: string;
  readonly testId: string;
  /** The label of each row. */
  readonly rows: readonly string[];
  /** The label of each column. */
  readonly columns: readonly string[];
  /** By row, then column; null where not known. */
  readonly values: readonly (number | null)[];
  readonly ink: string;
  /** The description of a cell; null if there is none. */
  what(row: number, column: number): string | null;
  /** The text in a cell that is large enough. */
  readonly inside?: (row: number, column: number) => string;
  /** How amounts are written; durations if absent. */
  readonly format?: (value: number) => string;
  /** Rows whose labels are never left out: those of ranks that a finding names. */
  readonly named?: readonly number[];
  /** How high the rows may be together, in pixels. */
  readonly tall?: number;
  onPick(row: number, column: number): void;
}

const TOP = 20;
const TALL = 420;
const LEAST_ROW = 2;
const LEAST_CELL = 46;
const LABEL = 150;

export function heatMap(context: Pick<ViewContext, "onLeave">, spec: HeatSpec): HTMLElement {
  const { rows, columns, values } = spec;
  const format = spec.format ?? formatDuration;
  const canvas = h("canvas", { "aria-hidden": "true" });
  const readout = h("p", { class: "heat-readout", role: "status", "data-testid": `${spec.testId}-readout` });
  const box = h("div", {
    class: "heat", tabindex: "0", role: "application", "data-testid": spec.testId, "data-rows": rows.length, "data-columns": columns.length,
    "aria-label": `${spec.label}, ${rows.length} rows by ${columns.length} columns. Arrow keys move, Enter opens the cell.`,
  }, canvas);
  const left = 14 + Math.min(LABEL, 7.4 * rows.reduce((longest, label) => Math.max(longest, label.length), 0));
  const most = values.reduce<number>((peak, value) => Math.max(peak, value ?? 0), 0);
  const row = Math.max(LEAST_ROW, Math.min(spec.inside ? 44 : 26, Math.floor((spec.tall ?? TALL) / Math.max(1, rows.length))));
  const height = TOP + row * rows.length + (row < 15 ? 8 : 0); // a name is higher than such a row
  let width = 0;
  let at: { row: number; column: number } | null = null;

  const cellWidth = (): number => Math.min(spec.inside ? 190 : Infinity, (width - left) / Math.max(1, columns.length));
  const value = (i: number, j: number): number | null => values[i * columns.length + j] ?? null;

  function draw(): void {
    const c = canvas.getContext("2d");
    if (!c || width === 0) return;
    const ratio = Math.min(2, devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    styled(canvas, { width: `${width}px`, height: `${height}px` });
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [text, muted, none, ink] = [color("--text"), color("--muted"), color("--bar-track"), color(spec.ink)];
    c.font = `12px ${FONT}`;
    c.textBaseline = "middle";
    const cell = cellWidth();
    const inside = row >= 22 && cell >= LEAST_CELL + 8 ? spec.inside : undefined;
    const depth = !inside ? 1 : isDark() ? 0.4 : 0.55; // text is drawn on it
    const gap = row >= 10 && cell >= 10 ? 1 : 0;
    for (let i = 0; i < rows.length; i++) {
      for (let j = 0; j < columns.length; j++) {
        if (spec.what(i, j) === null) continue;
        const amount = value(i, j);
        const [x, y] = [left + j * cell, TOP + i * row];
        c.globalAlpha = 1;
        c.fillStyle = none;
        if (amount === null) {
          c.globalAlpha = 0.35;
          c.fillRect(x, y, cell - gap, row - gap);
          continue;
        }
        c.fillRect(x, y, cell - gap, row - gap);
        c.fillStyle = ink;
        c.globalAlpha = most > 0 ? (depth * Math.max(0, amount)) / most : 0;
        c.fillRect(x, y, cell - gap, row - gap);
      }
    }
    c.globalAlpha = 1;
    c.fillStyle = muted;
    const everyRow = Math.ceil(15 / row);
    c.textAlign = "right";
    const always = (spec.named ?? []).filter((index) => index < rows.length);
    const free = (index: number): boolean => always.every((other) => index === other || Math.abs(index - other) * row >= 15);
    rows.forEach((label, index) => {
      const isNamed = always.includes(index);
      if (!isNamed && (index % everyRow !== 0 || !free(index))) return;
      c.fillStyle = isNamed ? text : muted;
      c.fillText(fitted(c, label, left - 10), left - 8, TOP + index * row + Math.max(row, 12) / 2);
    });
    c.fillStyle = muted;
    c.textAlign = "center";
    const widest = columns.reduce((most, label) => Math.max(most, c.measureText(label).width), 0);
    const everyColumn = Math.ceil(Math.min(Math.max(LEAST_CELL, widest + 12), 120) / cell);
    columns.forEach((label, index) => { if (index % everyColumn === 0) c.fillText(fitted(c, label, Math.max(cell * everyColumn, LEAST_CELL)), Math.max(left + 20, left + (index + 0.5) * cell), 9); });
    if (inside) {
      c.fillStyle = text;
      for (let i = 0; i < rows.length; i++) for (let j = 0; j < columns.length; j++) if (spec.what(i, j) !== null) c.fillText(whole(c, inside(i, j), cell - 8), left + (j + 0.5) * cell, TOP + (i + 0.5) * row);
    }
    if (at) {
      c.strokeStyle = text;
      c.lineWidth = 2;
      c.strokeRect(left + at.column * cell, TOP + at.row * row, Math.max(3, cell - gap), Math.max(3, row - gap));
    }
  }

  function move(to: { row: number; column: number } | null): void {
    at = to && { row: Math.min(rows.length - 1, Math.max(0, to.row)), column: Math.min(columns.length - 1, Math.max(0, to.column)) };
    const what = at && spec.what(at.row, at.column);
    if (at && what) {
      const amount = value(at.row, at.column);
      readout.textContent = `${what}: ${amount === null ? "unknown" : format(amount)}`;
    } else readout.textContent = most > 0 ? `Max: ${format(most)}` : "";
    draw();
  }

  function under(event: MouseEvent): { row: number; column: number } | null {
    const corner = canvas.getBoundingClientRect();
    const [column, line] = [Math.floor((event.clientX - corner.left - left) / cellWidth()), Math.floor((event.clientY - corner.top - TOP) / row)];
    return column >= 0 && column < columns.length && line >= 0 && line < rows.length && spec.what(line, column) !== null ? { row: line, column } : null;
  }

  const pick = (cell: { row: number; column: number } | null): void => { if (cell && spec.what(cell.row, cell.column) !== null) spec.onPick(cell.row, cell.column); };
  canvas.addEventListener("pointermove", (event) => move(under(event)));
  canvas.addEventListener("pointerleave", () => move(null));
  canvas.addEventListener("click", (event) => pick(under(event)));
  box.addEventListener("keydown", (event) => {
    const by: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = by[event.key];
    if (event.key === "Enter") pick(at);
    else if (step) move(at ? { row: at.row + step[0], column: at.column + step[1] } : { row: 0, column: 0 });
    else return;
    event.preventDefault();
  });
  const watch = new ResizeObserver(([entry]) => {
    width = Math.round(entry?.contentRect.width ?? 0);
    draw();
    if (width > 0) box.dataset["drawn"] = "true";
  });
  watch.observe(box);
  const stop = onThemeChange(draw);
  context.onLeave(() => {
    watch.disconnect();
    stop();
  });
  move(null);
  return h("div", {}, box, readout);
}

/** The text in a cell: all of it, else the part before the colon. A number is never cut. */
function whole(c: CanvasRenderingContext2D, label: string, width: number): string {
  return c.measureText(label).width <= width ? label : fitted(c, label.split(":")[0] ?? "", width);
}

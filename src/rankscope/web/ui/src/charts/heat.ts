/** Rank by step as a field of colour: who waits and who is late stands out among a thousand ranks. A cell leads to its place. */
import { h, styled } from "../components/dom.ts";
import { color, onThemeChange } from "../theme/theme.ts";
import { formatDuration } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import { FONT } from "./font.ts";

export interface HeatSpec {
  readonly label: string;
  readonly testId: string;
  readonly ranks: readonly number[];
  readonly steps: readonly (number | null)[];
  /** By rank, then step; null where not known. */
  readonly values: readonly (number | null)[];
  readonly ink: string;
  onPick(rank: number, step: number | null): void;
}

const TOP = 20;
const TALL = 420;
const LEAST_ROW = 2;

export function heatMap(context: Pick<ViewContext, "onLeave">, spec: HeatSpec): HTMLElement {
  const { ranks, steps, values } = spec;
  const canvas = h("canvas", { "aria-hidden": "true" });
  const said = h("p", { class: "heat-said", role: "status", "data-testid": `${spec.testId}-said` });
  const box = h("div", {
    class: "heat", tabindex: "0", role: "application", "data-testid": spec.testId, "data-rows": ranks.length, "data-columns": steps.length,
    "aria-label": `${spec.label}, ${ranks.length} ranks by ${steps.length} steps. Arrow keys move, Enter leads to the timeline.`,
  }, canvas);
  const left = 48 + 8 * String(Math.max(...ranks)).length;
  const most = values.reduce<number>((peak, value) => Math.max(peak, value ?? 0), 0);
  const row = Math.max(LEAST_ROW, Math.min(26, Math.floor(TALL / Math.max(1, ranks.length))));
  const height = TOP + row * ranks.length;
  let width = 0;
  let at: { rank: number; step: number } | null = null;

  const cellWidth = (): number => (width - left) / Math.max(1, steps.length);
  const value = (rank: number, step: number): number | null => values[rank * steps.length + step] ?? null;

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
    const gap = row >= 10 && cell >= 10 ? 1 : 0;
    for (let i = 0; i < ranks.length; i++) {
      for (let j = 0; j < steps.length; j++) {
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
        c.globalAlpha = most > 0 ? amount / most : 0;
        c.fillRect(x, y, cell - gap, row - gap);
      }
    }
    c.globalAlpha = 1;
    c.fillStyle = muted;
    const everyRank = Math.ceil(15 / row);
    c.textAlign = "right";
    ranks.forEach((rank, index) => { if (index % everyRank === 0) c.fillText(`Rank ${rank}`, left - 8, TOP + index * row + Math.max(row, 12) / 2); });
    c.textAlign = "center";
    const everyStep = Math.ceil(46 / cell);
    steps.forEach((step, index) => { if (index % everyStep === 0) c.fillText(step === null ? "–" : index === 0 ? `Step ${step}` : String(step), Math.max(left + 20, left + (index + 0.5) * cell), 9); });
    if (at) {
      c.strokeStyle = text;
      c.lineWidth = 2;
      c.strokeRect(left + at.step * cell, TOP + at.rank * row, Math.max(3, cell - gap), Math.max(3, row - gap));
    }
  }

  function move(to: { rank: number; step: number } | null): void {
    at = to && { rank: Math.min(ranks.length - 1, Math.max(0, to.rank)), step: Math.min(steps.length - 1, Math.max(0, to.step)) };
    if (at) {
      const amount = value(at.rank, at.step);
      said.textContent = `Rank ${ranks[at.rank]}, ${steps[at.step] === null ? "whole file" : `step ${steps[at.step]}`}: ${amount === null ? "not known" : formatDuration(amount)}`;
    } else said.textContent = most > 0 ? `Most: ${formatDuration(most)}` : "";
    draw();
  }

  function under(event: MouseEvent): { rank: number; step: number } | null {
    const corner = canvas.getBoundingClientRect();
    const [step, rank] = [Math.floor((event.clientX - corner.left - left) / cellWidth()), Math.floor((event.clientY - corner.top - TOP) / row)];
    return step >= 0 && step < steps.length && rank >= 0 && rank < ranks.length ? { rank, step } : null;
  }

  const pick = (cell: { rank: number; step: number } | null): void => { if (cell) spec.onPick(ranks[cell.rank] ?? 0, steps[cell.step] ?? null); };
  canvas.addEventListener("pointermove", (event) => move(under(event)));
  canvas.addEventListener("pointerleave", () => move(null));
  canvas.addEventListener("click", (event) => pick(under(event)));
  box.addEventListener("keydown", (event) => {
    const by: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = by[event.key];
    if (event.key === "Enter") pick(at);
    else if (step) move(at ? { rank: at.rank + step[0], step: at.step + step[1] } : { rank: 0, step: 0 });
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
  return h("div", {}, box, said);
}

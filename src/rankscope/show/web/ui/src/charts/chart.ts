/** An ECharts canvas: drawn when it has a size, redrawn when size or colors change, removed with its view. */
import { h, styled } from "../components/dom.ts";
import { onThemeChange } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { init, type EChartsOption, type EChartsType } from "./echarts.ts";
import { rangeSelect, type RangeSpec } from "./range_select.ts";

export interface ChartSpec {
  /** The chart's text for screen readers; its numbers are in a table on the same page. */
  readonly label: string;
  readonly testId: string;
  height(width: number): number;
  /** `share` is how much of the category axis is visible, 0 to 1. */
  option(width: number, share: number): EChartsOption;
  /** How closely things are drawn; the chart is redrawn when a zoom changes the answer. */
  density?(width: number, share: number): number;
  /** The chart has a zoom: the arrow keys move it, plus and minus change it. */
  readonly zoomed?: boolean;
  /** What a click (or tap) anywhere in a bar's band opens, by its place on the category axis; the arrow keys choose one too. */
  readonly pick?: BarPick;
  /** A range of the horizontal axis that a drag chooses. */
  readonly range?: { readonly within: RangeSpec; readonly chosen: RangeSpec | null; choose(range: RangeSpec): void };
}

export interface BarPick {
  readonly axis: "x" | "y";
  /** How many bars there are. */
  readonly count: number;
  /** The bar and its amounts, for screen readers. */
  describe(index: number): string;
  /** The series and its item whose tooltip shows a bar; the first series' item if absent. */
  tipAt?(index: number): { seriesIndex: number; dataIndex: number } | null;
  on(index: number): void;
}

export interface Chart {
  readonly element: HTMLElement;
  redraw(): void;
}

export function chart(context: Pick<ViewContext, "onLeave">, spec: ChartSpec): Chart {
  const readout = h("p", { class: "unseen", role: "status", "data-testid": `${spec.testId}-readout` });
  let chosen: number | null = null;
  const keys = spec.pick ? (spec.zoomed ? "Up and down choose a bar, Enter opens it; left and right move, plus and minus zoom." : "Arrow keys choose a bar, Enter opens it.") : "Arrow keys move, plus and minus zoom.";
  const canvas = h("div", spec.zoomed || spec.pick
    ? { class: "chart", role: "application", tabindex: "0", "aria-label": `${spec.label} ${keys}`, "data-testid": spec.testId, keydown: (event) => { if (drawn) byKey(drawn, event as KeyboardEvent); }, blur: () => drawn?.dispatchAction({ type: "hideTip" }) }
    : { class: "chart", role: "img", "aria-label": spec.label, "data-testid": spec.testId });
  const byKey = (on: EChartsType, event: KeyboardEvent): void => {
    const { pick } = spec;
    const by = { ArrowDown: 1, ArrowUp: -1, ...(spec.zoomed ? {} : { ArrowRight: 1, ArrowLeft: -1 }) }[event.key];
    if (pick && event.key === "Enter" && chosen !== null) pick.on(chosen);
    else if (pick && by !== undefined && pick.count > 0) {
      chosen = chosen === null ? (by > 0 ? 0 : pick.count - 1) : Math.min(pick.count - 1, Math.max(0, chosen + by));
      readout.textContent = pick.describe(chosen);
      const at = pick.tipAt ? pick.tipAt(chosen) : { seriesIndex: 0, dataIndex: chosen };
      on.dispatchAction(at ? { type: "showTip", ...at } : { type: "hideTip" });
    } else if (spec.zoomed) {
      zoomByKey(on, event);
      return;
    } else return;
    event.preventDefault();
  };
  let drawn: EChartsType | null = null;
  let width = 0;
  let density: number | undefined;
  let drawRange: (() => void) | null = null;
  const shareOf = (): number => {
    const zoom = drawn && zoomOf(drawn);
    return zoom ? (zoom.end - zoom.start) / 100 : 1;
  };

  const redraw = (): void => {
    if (!drawn) return;
    styled(canvas, { height: `${spec.height(width)}px` });
    drawn.resize();
    const kept = zoomOf(drawn);
    const share = shareOf();
    density = spec.density?.(width, share);
    drawn.setOption(spec.option(width, share), { notMerge: true });
    if (kept) drawn.dispatchAction({ type: "dataZoom", ...kept });
    drawn.getZr().flush(); // printing takes the picture at once
    drawRange?.();
  };

  const watch = new ResizeObserver(([entry]) => {
    const next = Math.round(entry?.contentRect.width ?? 0);
    if (next === 0 || next === width) return;
    width = next;
    if (!drawn) {
      styled(canvas, { height: `${spec.height(width)}px` });
      drawn = init(canvas);
      canvas.firstElementChild?.setAttribute("aria-hidden", "true"); // the pixels: what they show has a name and is in a table
      const { pick } = spec;
      if (pick) drawn.getZr().on("click", (event: { offsetX: number; offsetY: number }) => picked(drawn, pick, [event.offsetX, event.offsetY]));
      if (spec.range) drawRange = rangeSelect(drawn, canvas, spec.range.within, spec.range.chosen, spec.range.choose);
      drawn.on("datazoom", () => {
        if (spec.density && spec.density(width, shareOf()) !== density) requestAnimationFrame(redraw);
      });
      canvas.dataset["drawn"] = "true";
    }
    redraw();
  });
  watch.observe(canvas);
  const stop = onThemeChange(redraw);
  context.onLeave(() => {
    watch.disconnect();
    stop();
    drawn?.dispose();
  });
  return { element: spec.pick ? h("div", {}, canvas, readout) : canvas, redraw };
}

function picked(drawn: EChartsType | null, pick: BarPick, at: [number, number]): void {
  if (!drawn?.containPixel({ gridIndex: 0 }, at)) return;
  const place = drawn.convertFromPixel({ gridIndex: 0 }, at)[pick.axis === "x" ? 0 : 1];
  if (place !== undefined) pick.on(Math.round(place));
}

function zoomByKey(drawn: EChartsType, event: KeyboardEvent): void {
  const zoom = zoomOf(drawn);
  if (!zoom || event.ctrlKey || event.metaKey || event.altKey) return;
  const size = zoom.end - zoom.start;
  const center = (zoom.start + zoom.end) / 2;
  const to = (middle: number, length: number): { start: number; end: number } => {
    const start = Math.min(Math.max(0, middle - length / 2), Math.max(0, 100 - length));
    return { start, end: Math.min(100, start + length) };
  };
  const next = event.key === "ArrowLeft" ? to(center - size / 4, size) : event.key === "ArrowRight" ? to(center + size / 4, size)
    : event.key === "+" || event.key === "=" ? to(center, Math.max(2, size / 1.5)) : event.key === "-" ? to(center, Math.min(100, size * 1.5)) : null;
  if (!next) return;
  event.preventDefault();
  drawn.dispatchAction({ type: "dataZoom", ...next });
}

function zoomOf(drawn: EChartsType): { start: number; end: number } | null {
  const zooms = (drawn.getOption() as { dataZoom?: { start?: number; end?: number }[] } | undefined)?.dataZoom;
  const zoom = zooms?.[0];
  return zoom?.start === undefined || zoom.end === undefined ? null : { start: zoom.start, end: zoom.end };
}

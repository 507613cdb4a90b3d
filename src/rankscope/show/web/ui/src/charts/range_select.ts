/** A range of a chart's horizontal axis, chosen by dragging over it; shown as a band that stays when the chart is redrawn. */
import { h, styled } from "../components/dom.ts";
import type { EChartsType } from "./echarts.ts";

export interface RangeSpec {
  readonly from: number;
  readonly to: number;
}

const LEAST_PX = 4;

/**
 * @param within - the ends of the axis.
 * @returns draws the band where the axis now has the range.
 */
export function rangeSelect(drawn: EChartsType, canvas: HTMLElement, within: RangeSpec, chosen: RangeSpec | null, choose: (range: RangeSpec) => void): () => void {
  const band = h("div", { class: "chart-range", hidden: true, "aria-hidden": "true" });
  canvas.append(band);
  let start: number | null = null;
  const inside = (x: number, y: number): boolean => drawn.containPixel({ gridIndex: 0 }, [x, y]);
  const pixel = (value: number): number => drawn.convertToPixel({ xAxisIndex: 0 }, value) as number;
  const edge = (x: number): number => Math.min(pixel(within.to), Math.max(pixel(within.from), x));
  const place = (left: number, right: number): void => {
    band.hidden = false;
    styled(band, { left: `${left}px`, width: `${Math.max(1, right - left)}px` });
  };
  const draw = (): void => {
    if (chosen === null) {
      band.hidden = true;
      return;
    }
    const [left, right] = [chosen.from, chosen.to].map((value) => edge(pixel(value)));
    place(left ?? 0, right ?? 0);
  };
  const zr = drawn.getZr();
  zr.on("mousedown", (event: { offsetX: number; offsetY: number }) => { if (inside(event.offsetX, event.offsetY)) start = event.offsetX; });
  zr.on("mousemove", (event: { offsetX: number }) => { if (start !== null) place(Math.min(start, edge(event.offsetX)), Math.max(start, edge(event.offsetX))); });
  const end = (event: { offsetX: number }): void => {
    if (start === null) return;
    const [left, right] = [Math.min(start, edge(event.offsetX)), Math.max(start, edge(event.offsetX))];
    start = null;
    if (right - left < LEAST_PX) draw();
    else choose({ from: Math.round(drawn.convertFromPixel({ xAxisIndex: 0 }, left) as number), to: Math.round(drawn.convertFromPixel({ xAxisIndex: 0 }, right) as number) });
  };
  zr.on("mouseup", end);
  zr.on("globalout", () => { start = null; draw(); });
  return draw;
}

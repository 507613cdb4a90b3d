/** Amounts over time or steps, a line per rank, some of them marked. */
import { h } from "../components/dom.ts";
import { color } from "../theme/theme.ts";
import type { EChartsOption } from "./echarts.ts";
import { amountAxis, baseOption, namedAxis, splits } from "./option.ts";

export interface Line {
  readonly name: string;
  readonly marked: boolean;
  readonly points: readonly (readonly [number, number])[];
}

export interface LinesSpec {
  readonly lines: readonly Line[];
  /** Between two points the earlier value applies. */
  readonly stepped: boolean;
  /** A point in words: what it is along, and the amount. */
  describe(at: number, amount: number): string;
  /** What the lines are over, and how its marks are written. */
  readonly along: { readonly name: string; readonly more?: object; readonly label?: object };
  /** How amounts are written, and where their axis ends. */
  readonly amounts: { format(value: number): string; readonly more?: object };
}

/** Lines with fewer points than this have a dot at each. */
const DOTTED = 60;

export function linesOption({ lines, stepped, describe, along, amounts }: LinesSpec, width: number): EChartsOption {
  return {
    ...baseOption((params) => {
      const { seriesIndex = 0, data = [] } = params as { seriesIndex?: number; data?: number[] };
      return h("div", { class: "tip" }, `${lines[seriesIndex]?.name ?? ""}: ${describe(data[0] ?? 0, data[1] ?? 0)}`);
    }),
    xAxis: namedAxis(along.name, { splitNumber: splits(width), ...along.more }, along.label),
    yAxis: amountAxis(amounts.format, { splitNumber: splits(width), ...amounts.more }),
    series: lines.map(({ name, marked, points }) => {
      const ink = color(marked ? "--cat-communication" : "--cat-compute");
      return {
        type: "line", name, ...(stepped ? { step: "end" } : {}), symbolSize: 5, showSymbol: !stepped && points.length < DOTTED, emphasis: { disabled: true }, z: marked ? 3 : 2, triggerLineEvent: true,
        lineStyle: { color: ink, width: marked ? 2.2 : 1.2, opacity: marked ? 1 : 0.55 }, itemStyle: { color: ink }, data: points.map((point) => [...point]),
      };
    }),
  } as EChartsOption;
}

/** Which line is whose. */
export function linesLegend(marked: string | null, others: string | null): HTMLElement[] {
  const item = (ink: number, glyph: string, text: string): HTMLElement => h("li", { class: "legend-item" }, h("span", { class: `glyph ink-${ink}`, "aria-hidden": "true" }, glyph), text);
  return [...(marked === null ? [] : [item(0, "━", marked)]), ...(others === null ? [] : [item(1, "─", others)])];
}

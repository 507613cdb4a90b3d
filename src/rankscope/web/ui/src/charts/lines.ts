/** Amounts over time, a line per rank, one of them highlighted; steps, so between two points the earlier value applies. */
import { h } from "../components/dom.ts";
import { formatBytes, formatDuration, formatTick } from "../format/units.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { FONT } from "./font.ts";

export interface Line {
  readonly name: string;
  readonly marked: boolean;
  /** Time in ns and amount in bytes, by time. */
  readonly points: readonly (readonly [number, number])[];
}

export interface LinesSpec {
  readonly label: string;
  readonly title: string;
  readonly testId: string;
  readonly lines: readonly Line[];
}

export function lineChart(context: ViewContext, spec: LinesSpec): HTMLElement {
  const drawing = chart(context, { label: spec.label, testId: spec.testId, height: () => 300, option: (width) => option(spec.lines, width) });
  const marked = spec.lines.find((line) => line.marked);
  return h("figure", { class: "figure" }, h("figcaption", {}, spec.title),
    spec.lines.length < 2 ? null : h("ul", { class: "legend" },
      marked && h("li", { class: "legend-item" }, h("span", { class: "glyph ink-0", "aria-hidden": "true" }, "━"), `${marked.name} (highest)`),
      h("li", { class: "legend-item" }, h("span", { class: "glyph ink-1", "aria-hidden": "true" }, "─"), "other ranks")), drawing.element);
}

function option(lines: readonly Line[], width: number): EChartsOption {
  const [text, muted, line, surface] = [color("--text"), color("--muted"), color("--line"), color("--surface")];
  const splits = width < 520 ? 3 : 5;
  return {
    animation: false,
    textStyle: { fontFamily: FONT },
    grid: { left: 10, right: 24, top: 12, bottom: 30, containLabel: true },
    tooltip: {
      trigger: "item", confine: true, backgroundColor: surface, borderColor: line, textStyle: { color: text },
      formatter: (params: unknown) => {
        const { seriesIndex = 0, data = [] } = params as { seriesIndex?: number; data?: number[] };
        return h("div", { class: "tip" }, `${lines[seriesIndex]?.name ?? ""}: ${formatBytes(data[1] ?? 0)} at ${formatDuration(data[0] ?? 0)}`);
      },
    },
    xAxis: { type: "value", min: 0, splitNumber: splits, name: "Time since the first memory event", nameLocation: "middle", nameGap: 26, nameTextStyle: { color: muted }, axisLabel: { color: muted, hideOverlap: true, formatter: (value: number) => formatTick(value, formatDuration) }, splitLine: { show: false }, axisLine: { lineStyle: { color: line } } },
    yAxis: { type: "value", splitNumber: splits, axisLabel: { color: muted, formatter: (value: number) => formatTick(value, formatBytes) }, splitLine: { lineStyle: { color: line } } },
    series: lines.map(({ marked, points }) => ({
      type: "line", step: "end", showSymbol: false, emphasis: { disabled: true }, z: marked ? 3 : 2, triggerLineEvent: true,
      lineStyle: { color: color(marked ? "--cat-communication" : "--cat-compute"), width: marked ? 2.2 : 1.2, opacity: marked ? 1 : 0.55 },
      itemStyle: { color: color(marked ? "--cat-communication" : "--cat-compute") },
      data: points.map((point) => [...point]),
    })),
  } as EChartsOption;
}

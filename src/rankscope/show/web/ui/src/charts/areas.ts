/** Amounts over time as stacked areas, one per category; steps, so between two points the earlier value applies. */
import { h } from "../components/dom.ts";
import { swatch } from "../components/swatch.ts";
import { formatBytes, formatDuration } from "../format/units.ts";
import { CATEGORIES, categoryVariable, type Category } from "../theme/categories.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { amountAxis, baseOption, namedAxis, splits, ticks } from "./option.ts";
import { decal } from "./patterns.ts";
import type { RangeSpec } from "./range_select.ts";

export interface Area {
  readonly category: Category;
  readonly label: string;
  readonly values: readonly (number | null)[];
}

export interface AreasSpec {
  readonly label: string;
  readonly title: string;
  readonly testId: string;
  /** Ns, ascending. */
  readonly times: readonly number[];
  readonly areas: readonly Area[];
  readonly totals: readonly (number | null)[];
  readonly range: RangeSpec | null;
  onRange(range: RangeSpec): void;
}

export function areaChart(context: ViewContext, spec: AreasSpec): HTMLElement {
  const drawing = chart(context, { label: spec.label, testId: spec.testId, height: () => 320, option: (width) => option(spec, width), range: { within: { from: spec.times[0] ?? 0, to: spec.times.at(-1) ?? 1 }, chosen: spec.range, choose: (range) => spec.onRange(range) } });
  return h("figure", { class: "figure" }, h("figcaption", {}, spec.title),
    h("ul", { class: "legend" }, spec.areas.map((area) => h("li", { class: "legend-item" }, swatch(area.category), area.label))), drawing.element);
}

function option({ times, areas, totals }: AreasSpec, width: number): EChartsOption {
  const rowOf = (mark: Node | string, label: string, value: number | null | undefined): HTMLElement => h("tr", {}, h("td", {}, mark), h("th", { scope: "row" }, label), h("td", {}, value === null || value === undefined ? "–" : formatBytes(value)));
  const tip = (params: unknown): HTMLElement => {
    const index = (Array.isArray(params) ? (params[0] as { dataIndex?: number } | undefined)?.dataIndex : undefined) ?? 0;
    return h("div", { class: "tip" }, h("strong", {}, formatDuration(times[index] ?? 0)), h("table", {}, areas.map((area) => rowOf(swatch(area.category), area.label, area.values[index])), rowOf("", "Total", totals[index])));
  };
  return {
    ...baseOption(tip, { of: "axis" }),
    xAxis: namedAxis("Time since the start of the trace", { min: times[0] ?? 0, max: times.at(-1) ?? 1, splitNumber: splits(width) }, { showMinLabel: false, showMaxLabel: false, ...ticks(formatDuration) }),
    yAxis: amountAxis(formatBytes, { splitNumber: splits(width) }),
    series: areas.map(({ category, label, values }) => ({
      type: "line", name: label, stack: "whole", step: "end", showSymbol: false, emphasis: { disabled: true },
      lineStyle: { color: color(categoryVariable(category)), width: 1 }, itemStyle: { color: color(categoryVariable(category)), decal: decal(CATEGORIES[category].pattern) ?? null }, // the area has its series’ pattern
      areaStyle: { color: color(categoryVariable(category)), opacity: 0.85 },
      data: values.map((value, index) => [times[index] ?? 0, value ?? 0]),
    })),
  } as EChartsOption;
}

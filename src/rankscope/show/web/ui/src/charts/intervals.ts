/** What was measured at several sizes, each with its confidence interval, and the projection of a fitted law to larger ones. */
import { h } from "../components/dom.ts";
import { counted } from "../format/ranks.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { amountAxis, baseOption, namedAxis } from "./option.ts";

export interface Point {
  readonly ranks: number;
  readonly value: number;
  readonly low: number | null;
  readonly high: number | null;
}

export interface IntervalsSpec {
  readonly label: string;
  readonly title: string;
  readonly testId: string;
  readonly measured: readonly Point[];
  /** More ranks than cores or devices: measured too, and no statement on larger sizes. */
  readonly oversubscribed: readonly Point[];
  readonly projected: readonly Point[];
  /** What the perfect job would have at that many ranks. */
  perfect(ranks: number): number;
  /** Amounts that double with the ranks have a logarithmic axis. */
  readonly doubling: boolean;
  /** Made-up numbers: nothing of it was measured, and no table has them. */
  readonly example?: boolean;
  format(value: number): string;
}

export function intervalsChart(context: ViewContext, spec: IntervalsSpec): HTMLElement {
  const { measured, oversubscribed, projected } = spec;
  const drawing = chart(context, { label: spec.example ? spec.label : `${spec.label} The numbers are in the table on this page.`, testId: spec.testId, height: () => 280, option: () => option(spec) });
  const key = (ink: string, glyph: string, text: string): HTMLElement => h("li", { class: "legend-item" }, h("span", { class: `glyph ${ink}`, "aria-hidden": "true" }, glyph), text);
  const hasIntervals = [...measured, ...oversubscribed].some(({ low }) => low !== null);
  return h("figure", { class: "figure" }, h("figcaption", {}, spec.title),
    h("ul", { class: "legend" },
      measured.length > 0 && key("ink-1", "●", spec.example ? "what would be measured, with its confidence interval" : hasIntervals ? "measured, with its confidence interval" : "measured"),
      oversubscribed.length > 0 && key("ink-3", "✕", OVERSUBSCRIBED),
      projected.length > 0 && key("ink-0", "┄○", "projection, not measured"),
      key("ink-5", "╌", "perfect")), drawing.element);
}

function option(spec: IntervalsSpec): EChartsOption {
  const { measured, oversubscribed, projected } = spec;
  const largest = Math.max(1, ...[...measured, ...oversubscribed].map(({ ranks }) => ranks));
  const every = [...measured, ...oversubscribed, ...projected].map(({ ranks }) => ranks);
  const [least, most] = [Math.min(...every, 1), Math.max(...every, 2)];
  // An interval that reaches below a logarithmic axis is cut at its lower end.
  const foot = spec.doubling ? 2 ** Math.floor(Math.log2(Math.min(1, ...[...measured, ...oversubscribed, ...projected].map(({ value }) => value)) / 1.5)) : 0;
  const highest = Math.max(...[...measured, ...oversubscribed, ...projected].map(({ value, high }) => high ?? value), spec.perfect(most));
  const top = spec.doubling ? 2 ** Math.ceil(Math.log2(highest)) : Math.ceil(5 * highest) / 5;
  const at = (points: readonly Point[]): [number, number, number, number][] => points.map(({ ranks, value, low, high }) => [ranks, value, low ?? value, high ?? value]);
  const whiskers = (points: readonly Point[], ink: string): object => ({
    type: "custom", silent: true, z: 4, renderItem: (_: unknown, api: Api) => whisker(api, color(ink), foot), data: at(points.filter(({ low, high }) => low !== null && high !== null)),
  });
  const dots = (points: readonly Point[], name: string, ink: string, more: object): object => ({
    type: "line", name, z: 5, symbol: "circle", symbolSize: 9, clip: false, emphasis: { disabled: true }, itemStyle: { color: color(ink) }, lineStyle: { color: color(ink), width: 2 }, data: at(points), ...more,
  });
  const hollow = { color: color("--surface"), borderColor: color("--cat-communication"), borderWidth: 2 };
  const tip = (params: unknown): HTMLElement => {
    const { seriesName = "", data = [] } = params as { seriesName?: string; data?: number[] };
    const [ranks = 0, value = 0, low = value, high = value] = data;
    return h("div", { class: "tip" }, h("strong", {}, counted(ranks, "rank")), h("div", {}, `${seriesName}: ${spec.format(value)}`), low === high ? null : h("div", {}, `between ${spec.format(low)} and ${spec.format(high)}`));
  };
  return {
    ...baseOption(tip, { margins: { left: 12, right: 26, top: 16, bottom: 34 } }),
    xAxis: namedAxis("Ranks", { type: "log", logBase: 2, splitNumber: 8, min: least, max: most, nameGap: 30 }, { margin: 12, formatter: (value: number) => (Number.isInteger(value) ? String(value) : "") }),
    yAxis: amountAxis(spec.format, spec.doubling ? { type: "log", logBase: 2, splitNumber: 8, min: foot, max: top } : { min: 0, max: top, splitNumber: 4 }),
    series: [
      { type: "line", silent: true, symbol: "none", z: 2, lineStyle: { color: color("--cat-other"), type: [3, 4], width: 1.5 }, data: [least, most].map((ranks) => [ranks, spec.perfect(ranks)]) },
      dots(projected, "projection, not measured", "--cat-communication", {
        lineStyle: { color: color("--cat-communication"), type: [6, 5], width: 1.6 }, itemStyle: hollow, z: 3,
        symbolSize: (value: readonly number[]) => ((value[0] ?? 0) > largest ? 9 : 0), // the others were measured
      }),
      whiskers(projected.filter(({ ranks }) => ranks > largest), "--cat-communication"),
      dots(measured, "measured", "--cat-compute", {}),
      whiskers(measured, "--cat-compute"),
      dots(oversubscribed, OVERSUBSCRIBED, "--cat-data-loading", { symbol: CROSS, lineStyle: { width: 0 } }),
      whiskers(oversubscribed, "--cat-data-loading"),
    ],
  } as EChartsOption;
}

interface Api {
  value(dimension: number): number;
  coord(place: readonly [number, number]): [number, number];
}

const CAP = 5;
const OVERSUBSCRIBED = "measured, oversubscribed";
const CROSS = "path://M0 1 1 0 5 4 9 0 10 1 6 5 10 9 9 10 5 6 1 10 0 9 4 5Z";

/** An interval: an upright line between two short ones. */
function whisker(api: Api, stroke: string, foot: number): object {
  const [x, top] = api.coord([api.value(0), api.value(3)]);
  const [, bottom] = api.coord([api.value(0), Math.max(foot, api.value(2))]);
  const rule = (x1: number, y1: number, x2: number, y2: number): object => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke, lineWidth: 1.6 } });
  return { type: "group", children: [rule(x, top, x, bottom), rule(x - CAP, top, x + CAP, top), rule(x - CAP, bottom, x + CAP, bottom)] };
}

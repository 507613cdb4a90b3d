/**
 * Stacked time: one bar per rank (or step), one segment per category; the segments of a bar sum to its whole.
 *
 * Few ranks are rows; many are columns, all visible at once with a zoom below, so that an outlier among 256 shows.
 */
import { button } from "../components/controls.ts";
import { h, type Child } from "../components/dom.ts";
import { swatch } from "../components/swatch.ts";
import { formatDuration } from "../format/units.ts";
import { CATEGORIES, categoryVariable, type Category } from "../theme/categories.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart, type Chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { amountAxis, baseOption, namedAxis, splits } from "./option.ts";
import { decal } from "./patterns.ts";

export interface Segment {
  readonly category: Category;
  readonly label: string;
  readonly values: readonly (number | null)[];
}

export interface StackedSpec {
  readonly label: string;
  readonly testId: string;
  /** Its title, if the view has several charts. */
  readonly title?: string;
  /** How amounts are written; durations if absent. */
  readonly format?: (value: number) => string;
  /** What one bar is: "Rank", "Step"; empty where the bars' names say it. */
  readonly axis: string;
  readonly bars: readonly string[];
  readonly segments: readonly Segment[];
  /** The total of a bar's segments, from the analysis. */
  readonly totals?: { readonly label: string; readonly values: readonly (number | null)[] };
  /** How high the bars are together, in pixels; vertical ones with their axis, without a zoom’s slider. */
  readonly tall?: number;
  /** Bars in order of time are always vertical. */
  readonly upright?: boolean;
  onPick?(index: number): void;
}

const ROWS_AT_MOST = 24;
const [ROW_PX, LEAST_ROW_PX, ZOOM_PX] = [30, 17, 36];

export function stackedChart(context: ViewContext, spec: StackedSpec): HTMLElement {
  const hidden = new Set<Category>();
  const present = spec.segments.filter((segment) => segment.values.some((value) => value !== null && value !== 0));
  if (present.length === 0) {
    return h("figure", { class: "figure" }, spec.title === undefined ? null : h("figcaption", {}, spec.title),
      h("p", { class: "quiet-line", "data-testid": spec.testId, "data-drawn": "true" }, "Nothing to plot: all values are 0 or unknown."));
  }
  const lying = !spec.upright && spec.bars.length <= ROWS_AT_MOST;
  const named = namedBars(context, spec);
  const drawing: Chart = chart(context, {
    label: `${spec.label} Stacked bars, one per ${spec.axis === "" ? "row" : spec.axis.toLowerCase()}; the numbers are in the table on this page.`,
    testId: spec.testId,
    height: () => (lying ? lyingHeight(spec) : spec.tall === undefined ? 340 : spec.tall + (zoomable(spec, lying) ? ZOOM_PX : 0)),
    density: (width, share) => 2 * labelStride(spec, width, share) + Number(roomy(spec, lying, width, share)),
    option: (width, share) => option(spec, present.filter((segment) => !hidden.has(segment.category)), lying, width, share, named),
    zoomed: zoomable(spec, lying),
    ...(spec.onPick ? { pick: { axis: lying ? "y" as const : "x" as const, count: spec.bars.length, describe: (index: number) => inWords(spec, present.filter((segment) => !hidden.has(segment.category)), index), on: spec.onPick } } : {}),
  });
  return h("figure", { class: "figure" }, spec.title === undefined ? null : h("figcaption", {}, spec.title), present.length < 2 ? null : legend(present, hidden, () => drawing.redraw()), drawing.element);
}

/** Rows of 30 px; in a given height rows that fit, as long as their names can be read. */
function lyingHeight({ bars, tall }: StackedSpec): number {
  if (tall === undefined) return Math.max(120, bars.length * ROW_PX + 56);
  return Math.max(84, bars.length * Math.min(ROW_PX, Math.max(LEAST_ROW_PX, tall / bars.length)) + 34);
}

/** A bar and its amounts in one line. */
function inWords(spec: StackedSpec, segments: readonly Segment[], index: number): string {
  const amount = (value: number | null | undefined): string => (value === null || value === undefined ? "unknown" : (spec.format ?? formatDuration)(value));
  const parts = segments.map(({ label, values }) => `${label} ${amount(values[index])}`);
  return `${`${spec.axis} ${spec.bars[index] ?? ""}`.trim()}: ${[...parts, ...(spec.totals ? [`${spec.totals.label} ${amount(spec.totals.values[index])}`] : [])].join(", ")}`;
}

/** The legend; each entry shows or hides its segments. */
function legend(segments: readonly Segment[], hidden: Set<Category>, changed: () => void): HTMLElement {
  return h("div", { class: "legend", role: "group", "aria-label": "Categories shown" }, segments.map((segment) => {
    const toggle = button({ class: "legend-item", "aria-pressed": "true", title: `Show or hide: ${segment.label}` }, () => {
      if (!hidden.delete(segment.category)) hidden.add(segment.category);
      toggle.setAttribute("aria-pressed", String(!hidden.has(segment.category)));
      changed();
    }, swatch(segment.category), segment.label);
    return toggle;
  }));
}

function option(spec: StackedSpec, segments: readonly Segment[], lying: boolean, width: number, share: number, named: ReadonlySet<number>): EChartsOption {
  const [text, muted, line, surface] = [color("--text"), color("--muted"), color("--line"), color("--surface")];
  const zoomed = zoomable(spec, lying);
  const wide = roomy(spec, lying, width, share);
  const stride = labelStride(spec, width, share);
  const labeled = (index: number): boolean => named.has(index) || (index % stride === 0 && [...named].every((other) => Math.abs(other - index) >= stride));
  const names = namedAxis(lying ? "" : spec.axis, { type: "category", data: [...spec.bars], inverse: lying, axisTick: { show: false } }, {
    color: text, hideOverlap: false, interval: lying ? 0 : (index: number) => labeled(index), rich: { named: { fontWeight: "bold", color: color("--error") } },
    formatter: (bar: string, index: number) => { const words = lying ? `${spec.axis} ${bar}`.trim() : bar; return named.has(index) ? `{named|${words}}` : words; },
  });
  const amounts = amountAxis(spec.format ?? formatDuration, { splitNumber: splits(width) }, { hideOverlap: true });
  return {
    ...baseOption((params) => tip(spec, segments, params), { of: "bar", margins: { left: 6, right: lying ? 30 : 8, top: 10, bottom: lying ? 6 : zoomed ? 62 : 26 } }),
    xAxis: lying ? amounts : names,
    yAxis: lying ? names : amounts,
    ...(zoomed ? { dataZoom: zoom(line, muted, text) } : {}),
    series: segments.map((segment) => ({
      type: "bar" as const,
      stack: "whole",
      name: segment.label,
      data: [...segment.values],
      barMaxWidth: lying ? 22 : 72,
      barCategoryGap: wide ? "22%" : "0%",
      cursor: spec.onPick ? "pointer" : "default",
      emphasis: { disabled: true },
      itemStyle: {
        color: color(categoryVariable(segment.category)),
        borderColor: wide ? surface : color(categoryVariable(segment.category)), // of its own color: no seams between hair-thin bars
        borderWidth: wide ? 1 : 0.7,
        ...(wide ? { decal: decal(CATEGORIES[segment.category].pattern) ?? null } : {}),
      },
    })),
  } as EChartsOption;
}

/** Every how manyth vertical bar has its label. */
function labelStride(spec: StackedSpec, width: number, share: number): number {
  const longest = spec.bars.reduce((most, bar) => Math.max(most, bar.length), 1);
  return Math.max(1, Math.ceil(((longest * 8 + 10) * spec.bars.length * share) / Math.max(1, width - 60)));
}

/** Bars of ranks that delay the others: their labels are never left out. */
function namedBars(context: ViewContext, spec: StackedSpec): ReadonlySet<number> {
  const ranks = spec.axis === "Rank" ? context.payload.diagnosis?.stragglers.ranks ?? [] : [];
  return new Set(spec.bars.flatMap((bar, index) => (ranks.some((rank) => bar === String(rank) || bar.startsWith(`${rank} (`)) ? [index] : [])));
}

/** Wide enough for a gap between bars and a pattern in them. */
function roomy(spec: StackedSpec, lying: boolean, width: number, share: number): boolean {
  return lying || width / (spec.bars.length * share) > 20;
}

/** More bars than can be distinguished: a slider, touch and the keyboard move through them. */
function zoomable(spec: StackedSpec, lying: boolean): boolean {
  return !lying && spec.bars.length > ROWS_AT_MOST;
}

function zoom(line: string, muted: string, text: string): object[] {
  return [
    { type: "slider", bottom: 4, height: 22, borderColor: line, textStyle: { color: text }, fillerColor: `${muted}33`, showDataShadow: false, brushSelect: false, showDetail: false },
    { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
  ];
}

function tip(spec: StackedSpec, segments: readonly Segment[], params: unknown): HTMLElement {
  const index = (Array.isArray(params) ? (params[0] as { dataIndex?: number } | undefined)?.dataIndex : undefined) ?? 0;
  const line = (mark: Child, label: string, value: number | null | undefined): HTMLElement =>
    h("tr", {}, h("td", {}, mark), h("th", { scope: "row" }, label), h("td", {}, value === null || value === undefined ? "–" : (spec.format ?? formatDuration)(value)));
  return h("div", { class: "tip" },
    h("strong", {}, `${spec.axis} ${spec.bars[index] ?? ""}`.trim()),
    h("table", {},
      segments.map((segment) => line(swatch(segment.category), segment.label, segment.values[index])),
      spec.totals ? line("", spec.totals.label, spec.totals.values[index]) : null));
}

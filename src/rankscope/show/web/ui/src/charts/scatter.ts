/** Dots over sizes, both in powers of ten: each collective against its duration, each kind against its bandwidth. Dots above the others of their size were slow or waited. */
import { h, named } from "../components/dom.ts";
import type { Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { formatBytes, formatCell, formatDuration, grouped } from "../format/units.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { baseOption, namedAxis, ticks } from "./option.ts";

const DOTS = 4000;
const SHAPES = ["circle", "triangle", "rect", "diamond", "emptyCircle", "arrow"] as const;
const GLYPHS = ["●", "▲", "■", "◆", "○", "➤"] as const;
const INKS = ["--cat-communication", "--cat-compute", "--cat-memory", "--cat-data-loading", "--cat-runtime", "--cat-other"] as const;

export interface ScatterSpec {
  /** The vertical axis: a duration or a rate of the table, over its `bytes`. */
  readonly y: "duration_ns" | "bus_bandwidth";
  readonly title: string;
  readonly testId: string;
  readonly height: number;
}

export function scatterChart(context: ViewContext, table: Table, spec: ScatterSpec): HTMLElement | null {
  const drawable = table.rows().filter((row) => (table.number(row, "bytes") ?? 0) > 0 && (table.number(row, spec.y) ?? 0) > 0);
  if (drawable.length === 0) return null;
  const stride = Math.ceil(drawable.length / DOTS);
  const rows = drawable.filter((_, index) => index % stride === 0);
  const kinds = [...new Set(rows.map((row) => String(table.cell(row, "collective") ?? "unnamed")))].sort(); // the same color in every picture of the same collectives
  const groups = kinds.slice(0, SHAPES.length - 1).map((kind) => ({ label: kind, rows: rows.filter((row) => String(table.cell(row, "collective") ?? "unnamed") === kind) }));
  const rest = new Set(kinds.slice(SHAPES.length - 1));
  if (rest.size > 0) groups.push({ label: "others", rows: rows.filter((row) => rest.has(String(table.cell(row, "collective") ?? "unnamed"))) });
  const drawing = chart(context, {
    label: `${spec.title}, one dot per collective; the numbers are in the table below.`,
    testId: spec.testId,
    height: () => spec.height,
    option: () => option(table, spec, groups.map((group) => group.rows)),
  });
  const title = stride === 1 ? spec.title : `${spec.title} (${grouped(rows.length)} of ${grouped(drawable.length)} shown)`;
  return h("figure", { class: "figure" }, h("figcaption", {}, title),
    h("ul", { class: "legend" }, groups.map((group, index) => h("li", { class: "legend-item" },
      h("span", { class: `glyph ink-${index}`, "aria-hidden": "true" }, GLYPHS[index] ?? "●"), named(shownName(group.label, 40))))),
    drawing.element);
}

function option(table: Table, spec: ScatterSpec, groups: readonly (readonly number[])[]): EChartsOption {
  // Fewer splits, and only every tenth power is marked.
  const axis = (name: string, nameGap: number, format: (value: number) => string): object => namedAxis(name,
    { type: "log", splitNumber: 8, nameGap, minorTick: { show: false }, splitLine: { lineStyle: { color: color("--line") } } }, { margin: 12, ...ticks(format) });
  return {
    ...baseOption((params) => tip(table, spec, ((params as { data?: number[] }).data ?? [])[2] ?? 0), { margins: { left: spec.y === "duration_ns" ? 24 : 30, right: 18, bottom: 34 } }),
    xAxis: axis("Size", 30, formatBytes),
    yAxis: spec.y === "duration_ns" ? axis("Duration", 58, formatDuration) : axis("Bus bandwidth", 82, formatRate),
    series: groups.map((rows, index) => ({
      type: "scatter", symbol: SHAPES[index] ?? "circle", symbolSize: 8, emphasis: { disabled: true },
      itemStyle: { color: color(INKS[index] ?? "--cat-other"), opacity: 0.75, borderColor: color("--surface"), borderWidth: 0.5 },
      data: rows.map((row) => [table.number(row, "bytes"), table.number(row, spec.y), row]),
    })),
  } as EChartsOption;
}

function formatRate(value: number): string {
  return formatCell(value, "GB/s");
}

function tip(table: Table, spec: ScatterSpec, row: number): HTMLElement {
  const line = (label: string, value: Node | string): HTMLElement => h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, value));
  return h("div", { class: "tip" }, h("strong", {}, named(String(table.cell(row, "collective") ?? "unnamed"), 60)), h("table", {},
    table.has("rank") ? line("Rank", String(table.cell(row, "rank") ?? "–")) : null,
    line("Group", named(String(table.cell(row, "group") ?? "–"), 40)),
    table.has("sequence") ? line("Sequence", String(table.cell(row, "sequence") ?? "–")) : null,
    line("Size", formatBytes(table.number(row, "bytes") ?? 0)),
    spec.y === "duration_ns" ? line("Duration", formatDuration(table.number(row, spec.y) ?? 0)) : line("Bus bandwidth", formatRate(table.number(row, spec.y) ?? 0))));
}

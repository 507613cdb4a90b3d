/** The rows of a query as a chart: one column along, one column up. */
import { chart } from "../charts/chart.ts";
import type { EChartsOption } from "../charts/echarts.ts";
import { amountAxis, baseOption, namedAxis, splits, ticks } from "../charts/option.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import type { Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { formatCell, grouped } from "../format/units.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { CHARTS, readChart, type ChartChoice, type ChartKind } from "./address.ts";

const MOST = 2_000;
const MOST_BARS = 200;
const NAMES: Readonly<Record<ChartKind, string>> = { bars: "bars", dots: "dots", line: "a line" };

export function rowsChart(context: ViewContext, table: Table): HTMLElement | null {
  const numeric = table.columns.filter((column) => table.isNumeric(column));
  if (numeric.length === 0 || table.length < 2) return null;
  const chosen = readChart(context.router.place().params, table.columns, numeric);
  const place = h("div", {});
  const draw = (choice: ChartChoice | null): void => place.replaceChildren(...(choice === null ? [] : [picture(context, table, choice)]));
  let now: ChartChoice = chosen ?? { x: table.columns.find((column) => !numeric.includes(column)) ?? table.columns[0] ?? "", y: numeric.at(-1) ?? "", kind: "bars" };
  const choose = (change: Partial<ChartChoice>): void => {
    now = { ...now, ...change };
    context.router.note({ x: now.x, y: now.y, chart: now.kind });
    draw(now);
  };
  const list = (names: readonly string[]): { value: string; label: string }[] => names.map((name) => ({ value: name, label: shownName(name, 40) }));
  const details = h("details", { class: "fold", "data-testid": "query-chart-fold" }, h("summary", {}, h("span", { class: "fold-title" }, "Chart")),
    h("div", { class: "fold-body" }, h("div", { class: "controls" },
      selector("query-x", "Along", list(table.columns), now.x, (x) => choose({ x })), selector("query-y", "Up", list(numeric), now.y, (y) => choose({ y })),
      selector("query-kind", "As", CHARTS.map((kind) => ({ value: kind, label: NAMES[kind] })), now.kind, (kind) => choose({ kind: CHARTS.find((each) => each === kind) ?? "bars" }))), place));
  details.addEventListener("toggle", () => { if (details.open && !place.hasChildNodes()) choose({}); });
  details.open = chosen !== null;
  return details;
}

function picture(context: ViewContext, table: Table, choice: ChartChoice): HTMLElement {
  const { x, y, kind } = choice;
  const amounts = table.rows().filter((row) => table.number(row, y) !== null);
  const along = kind !== "bars" && table.isNumeric(x);
  const ordered = along ? table.sorted(amounts.filter((row) => table.number(row, x) !== null), { column: x, descending: false }) : amounts;
  const rows = ordered.slice(0, along ? MOST : MOST_BARS);
  const drawing = chart(context, {
    label: `${y} by ${x}; the numbers are in the table.`, testId: "chart-query", height: () => 320, option: (width) => option(table, choice, rows, along, width),
  });
  const cut = rows.length < table.length ? ` (${grouped(rows.length)} of ${grouped(table.length)} rows)` : "";
  return h("figure", { class: "figure" }, h("figcaption", {}, `${shownName(y, 60)} by ${shownName(x, 60)}${cut}`), drawing.element);
}

function option(table: Table, { x, y, kind }: ChartChoice, rows: readonly number[], along: boolean, width: number): EChartsOption {
  const written = (row: number, column: string): string => formatCell(table.cell(row, column), table.meta(column).unit, table.meta(column).instant);
  const bottom = along
    ? namedAxis(shownName(x, 60), { scale: true, splitNumber: splits(width) }, ticks((value) => formatCell(value, table.meta(x).unit)))
    : namedAxis(shownName(x, 60), { type: "category", data: rows.map((row) => shownName(written(row, x), 24)), axisTick: { show: false } });
  const ink = color("--cat-compute");
  const type = kind === "bars" ? "bar" : kind === "dots" ? "scatter" : "line";
  return {
    ...baseOption((params) => {
      const row = rows[(params as { dataIndex?: number }).dataIndex ?? 0] ?? 0;
      return h("div", { class: "tip" }, `${shownName(x, 40)}: ${shownName(written(row, x), 80)}, ${shownName(y, 40)}: ${written(row, y)}`);
    }),
    xAxis: bottom,
    yAxis: amountAxis((value) => formatCell(value, table.meta(y).unit), { splitNumber: splits(width) }),
    series: [{ type, data: rows.map((row) => (along ? [table.number(row, x), table.number(row, y)] : table.number(row, y))), itemStyle: { color: ink }, lineStyle: { color: ink, width: 1.6 }, symbolSize: 6, showSymbol: rows.length < 60, barMaxWidth: 40, emphasis: { disabled: true } }],
  } as EChartsOption;
}

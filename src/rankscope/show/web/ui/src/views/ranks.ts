import { heatMap } from "../charts/heat.ts";
import { stackedChart } from "../charts/stacked.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import type { Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { formatDuration, formatRatio } from "../format/units.ts";
import type { Category } from "../theme/categories.ts";
import { leadTo, present, type View, type ViewContext } from "./view.ts";

/** Disjoint by definition: compute, what of communication and memory no compute hides, and idle sum to the span. */
const PARTS: readonly (readonly [string, Category, string])[] = [
  ["compute_ns", "compute", "Compute"],
  ["exposed_communication_ns", "communication", "Exposed communication"],
  ["exposed_memory_ns", "memory", "Exposed memory"],
  ["idle_ns", "idle", "Idle"],
];
/** What a cell of the field can show: analysis, column, words, ink. */
const AMOUNTS = [
  ["stragglers", "waited_ns", "wait caused on other ranks", "--error"],
  ["stragglers", "lateness_ns", "lateness", "--error"],
  ["device_time", "compute_ns", "compute", "--cat-compute"],
  ["device_time", "exposed_communication_ns", "exposed communication", "--cat-communication"],
  ["device_time", "idle_ns", "idle", "--cat-other"],
  ["utilization", "utilization", "utilization", "--cat-memory"],
] as const;

export const ranks: View = {
  id: "ranks",
  title: "Ranks",
  group: "ranks",
  question: "Do all ranks spend their device time the same way, and where is the outlier?",
  answers: ["device_time"],
  shows: ["device_time"],
  wants: ["placement", "stragglers", "utilization", "step_time"],
  tables: ["placement", "mesh", "utilization"],
  render(context) {
    const chart = stackedDeviceTime(context);
    if (!chart) {
      return present([emptyState("No device time recorded.", "No trace in this run contains device events, or none could be read. Record device activity; `rankscope.Profiler` does so automatically."), field(context), tables(context, [{ name: "placement" }, { name: "mesh" }])]);
    }
    return present([field(context), chart, utilization(context), tables(context, [{ name: "device_time", open: true }, { name: "utilization" }, { name: "mesh" }, { name: "placement" }])]);
  },
};

/** Every rank where it sits, in the mesh or on its host, as dark as its amount is great. */
function field(context: ViewContext): HTMLElement | null {
  const place = context.table("placement");
  if (!place || place.length < 2) return null;
  const known = AMOUNTS.filter(([name, column]) => context.table(name)?.values(column).some((value) => value !== null));
  const { params } = context.place;
  const shown = known.find(([, column]) => column === params.get("show")) ?? known.find(([name, column]) => context.table(name)?.hasAny(column)) ?? known[0];
  if (!shown) return null;
  const layouts = [{ value: "mesh", label: "the mesh", rows: "mesh_row" }, { value: "host", label: "hosts", rows: "host_row" }].filter(({ rows }) => place.values(rows).some((value) => value !== null));
  // A mesh of one dimension is one long row: hosts are more informative.
  const layout = layouts.find(({ value }) => value === params.get("by")) ?? layouts.find(({ rows }) => place.distinct(rows).filter((value) => value !== null).length > 1) ?? layouts[0] ?? null;
  const [name, column, words, ink] = shown;
  const amounts = new Map(tableRows(context.table(name)).map((row) => [context.table(name)?.cell(row, "rank"), context.table(name)?.number(row, column) ?? null]));
  const grid = layout === null ? inOrder(place) : laid(place, layout.value);
  const title = layout === null ? "Ranks" : layout.value === "mesh" ? "Ranks by mesh position" : "Ranks by host";
  const format = column === "utilization" ? formatRatio : formatDuration;
  const amountAt = (row: number, at: number): number | null => amounts.get(grid.rank(row, at)) ?? null;
  const culprits = new Set(context.payload.diagnosis?.stragglers.ranks ?? []);
  const guilty = grid.rows.flatMap((_, row) => (grid.columns.some((__, at) => culprits.has(grid.rank(row, at) ?? -1)) ? [row] : []));
  return h("section", { "aria-labelledby": "field-title" },
    h("div", { class: "section-head" }, h("h3", { id: "field-title" }, title),
      h("div", { class: "controls" }, selector("field-show", "Show:", known.map(([, value, label]) => ({ value, label })), column, (value) => context.router.update({ show: value })),
        layouts.length > 1 && selector("field-by", "Arranged by", layouts, layout?.value ?? "", (value) => context.router.update({ by: value })))),
    h("div", { class: "figure" }, heatMap(context, {
      label: `${title}: ${words}`, testId: "rank-field", ink, format, rows: grid.rows, columns: grid.columns, named: guilty,
      values: grid.rows.flatMap((_, row) => grid.columns.map((__, at) => amountAt(row, at))),
      what: (row, at) => { const rank = grid.rank(row, at); return rank === null ? null : `Rank ${rank}${grid.of(row, at)}`; },
      inside: (row, at) => { const amount = amountAt(row, at); return `${grid.rank(row, at)}: ${amount === null ? "–" : format(amount)}`; },
      onPick: (row, at) => { const to = leadTo(context, grid.rank(row, at)); if (to !== null) location.hash = to; },
    })));
}

interface Grid {
  readonly rows: readonly string[];
  readonly columns: readonly string[];
  rank(row: number, column: number): number | null;
  /** Further text about a cell. */
  of(row: number, column: number): string;
}

/** As `placement` lays the ranks out; where several share a cell, as damaged metadata may have it, the last one shows. */
function laid(place: Table, by: string): Grid {
  const cells = new Map<string, number>();
  const [rowNames, columnNames] = [new Map<number, string>(), new Map<number, string>()];
  for (const row of tableRows(place)) {
    const [line, column] = [place.number(row, `${by}_row`), place.number(row, `${by}_column`)];
    if (line === null || column === null) continue;
    cells.set(`${line},${column}`, row);
    rowNames.set(line, shownName(String(place.cell(row, by === "mesh" ? "mesh_row_label" : "host") ?? ""), 40));
    columnNames.set(column, by === "mesh" ? `${shownName(String(place.cell(row, "mesh_column_dimension") ?? ""), 12)}=${column}` : String(column));
  }
  const [lines, columns] = [[...rowNames.keys()].sort((a, b) => a - b), [...columnNames.keys()].sort((a, b) => a - b)];
  const at = (row: number, column: number): number | undefined => cells.get(`${lines[row]},${columns[column]}`);
  const cell = (row: number, column: number, name: string): string => { const found = at(row, column); return String((found === undefined ? null : place.cell(found, name)) ?? ""); };
  return {
    rows: lines.map((line) => rowNames.get(line) ?? ""), columns: columns.map((column) => columnNames.get(column) ?? ""),
    rank: (row, column) => { const found = at(row, column); return found === undefined ? null : place.number(found, "rank"); },
    of: (row, column) => [cell(row, column, "host"), cell(row, column, "mesh")].filter(Boolean).map((text) => `, ${shownName(text, 60)}`).join(""),
  };
}

/** Without a known placement: eight ranks per row. */
function inOrder(place: Table): Grid {
  const all = place.distinct("rank") as number[];
  const wide = Math.min(8, all.length);
  const lines = Array.from({ length: Math.ceil(all.length / wide) }, (_, row) => row);
  const alone = lines.length === 1;
  return {
    rows: lines.map((row) => (alone ? "Rank" : `Rank ${all[row * wide] ?? ""} …`)),
    columns: Array.from({ length: wide }, (_, column) => (alone ? String(all[column] ?? "") : column === 0 ? "" : `+${column}`)),
    rank: (row, column) => all[row * wide + column] ?? null, of: () => "",
  };
}

function tableRows(table: Table | null): number[] {
  return table?.rows() ?? [];
}

export function stackedDeviceTime(context: ViewContext, tall?: number): HTMLElement | null {
  const table = context.table("device_time");
  if (!table) return null;
  const rows = table.sorted(table.rows(), { column: "rank", descending: false });
  if (rows.every((row) => (table.number(row, "span_ns") ?? 0) === 0)) return null; // memory snapshots have no durations
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  const leads = leadTo(context, 0) !== null;
  return stackedChart(context, {
    label: "Device time by rank, entire recording.",
    testId: "chart-device-time",
    axis: "Rank",
    ...(tall === undefined ? {} : { tall }),
    bars: rows.map((row) => String(table.cell(row, "rank"))),
    segments: PARTS.filter(([column]) => table.has(column)).map(([column, category, label]) => ({ category, label, values: pick(column) })),
    totals: { label: "Span", values: pick("span_ns") },
    ...(leads ? { onPick: (index: number) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; } } : {}),
  });
}

/** How much of its time each device ran kernels. */
function utilization(context: ViewContext): HTMLElement | null {
  const table = context.table("utilization");
  if (!table) return null;
  const rows = table.sorted(table.rows(), { column: "rank", descending: false }).filter((row) => table.number(row, "utilization") !== null);
  if (rows.length === 0) return null;
  const several = rows.length > table.distinct("rank").length;
  return h("section", { "aria-labelledby": "utilization-title" }, h("h3", { id: "utilization-title" }, "Device utilization"), stackedChart(context, {
    label: "Share of each device’s time in which kernels ran.", testId: "chart-utilization", axis: "Rank", format: formatRatio,
    bars: rows.map((row) => `${String(table.cell(row, "rank"))}${several ? ` (device ${String(table.cell(row, "device"))})` : ""}`),
    segments: [{ category: "compute", label: "Kernels running", values: rows.map((row) => table.number(row, "utilization")) }],
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  }));
}

import { stackedChart } from "../charts/stacked.ts";
import { h } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import type { Table } from "../data/table.ts";
import type { Category } from "../theme/categories.ts";
import type { View, ViewContext } from "./view.ts";

/** Disjoint by definition: compute, what of communication and memory no compute hides, and idle sum to the span. */
const PARTS: readonly (readonly [string, Category, string])[] = [
  ["compute_ns", "compute", "Compute"],
  ["exposed_communication_ns", "communication", "Exposed communication"],
  ["exposed_memory_ns", "memory", "Exposed memory"],
  ["idle_ns", "idle", "Idle"],
];

export const ranks: View = {
  id: "ranks",
  title: "Ranks",
  question: "Does every rank spend its device’s time alike?",
  shows: ["device_time"],
  render(context) {
    const table = context.table("device_time");
    const analysis = context.payload.analyses.get("device_time");
    if (!table || !analysis) {
      return [emptyState("No rank’s device time is known.", "No trace in this run holds device events, or none could be read. Record with the device’s activity on: `rankscope.Profiler` does so by itself.")];
    }
    return [h("div", {}, stackedDeviceTime(context), analysisCaption(analysis), truncationNote("device_time", analysis)),
      tableView(context, { name: "device_time", table, caption: analysis.title })];
  },
};

export function stackedDeviceTime(context: ViewContext): HTMLElement | null {
  const table = context.table("device_time");
  if (!table) return null;
  const rows = table.sorted(table.rows(), { column: "rank", descending: false });
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  return stackedChart(context, {
    label: "Device time by rank.",
    testId: "chart-device-time",
    axis: "Rank",
    bars: rows.map((row) => String(table.cell(row, "rank"))),
    segments: PARTS.filter(([column]) => table.has(column)).map(([column, category, label]) => ({ category, label, values: pick(column) })),
    totals: { label: "Span", values: pick("span_ns") },
    ...stepsOf(context, rows, table),
  });
}

/** A click on a rank leads to its place in the timeline, or in a report to its steps, where there are any. */
function stepsOf(context: ViewContext, rows: readonly number[], table: Table): { onPick?: (index: number) => void } {
  if (context.served) return { onPick: (index) => { location.hash = context.router.href("timeline", { rank: String(table.cell(rows[index] ?? 0, "rank")) }); } };
  if (!context.table("step_time")) return {};
  return { onPick: (index) => { location.hash = context.router.href("steps", { rank: String(table.cell(rows[index] ?? 0, "rank")) }); } };
}

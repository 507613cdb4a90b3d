import { stackedChart } from "../charts/stacked.ts";
import { h } from "../components/dom.ts";
import { eventParamsOf } from "../components/event_link.ts";
import { WALK } from "../components/row_walk.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import type { Table } from "../data/table.ts";
import { formatRatio } from "../format/units.ts";
import type { Category } from "../theme/categories.ts";
import { hasTimeline, leadTo, present, type View, type ViewContext } from "./view.ts";

/** The columns of `idle_by_device`; they sum to the idle time exactly. */
const CAUSES: readonly (readonly [string, Category, string])[] = [
  ["data_loading_ns", "data_loading", "Data loading"], ["synchronisation_ns", "waiting", "Waiting for the device"], ["runtime_ns", "runtime", "Other runtime calls"],
  ["operator_ns", "host_op", "Operators"], ["python_ns", "python", "Python"], ["nothing_ns", "idle", "Nothing recorded"],
];

export const idle: View = {
  id: "idle",
  title: "Idle and launches",
  group: "step",
  question: "Why is the device idle, and does the host launch work ahead of it?",
  answers: ["idle", "launches"],
  shows: ["idle_by_device", "launches"],
  wants: ["idle"],
  tables: ["idle", "idle_by_step", "synchronization"],
  render(context) {
    const [gaps, all] = [context.table("idle_by_device"), context.table("launches")];
    // Traces without launches have a row of zeros per rank.
    const launches = all?.hasAny("launches") ? all : null;
    if (!gaps && !launches) {
      return present([emptyState("No device events in these traces.", "A CPU-only job has no device. On an accelerator, record its activity; `rankscope.Profiler` does so automatically.")]);
    }
    return present([
      gaps && causes(context, gaps),
      launches && bound(context, launches),
      tables(context, [{ name: "idle_by_device", open: true, eventsOf: (row: number, column: string) => (gaps && longestGap(context, gaps, row, column)) }, { name: "idle", sort: { column: "idle_ns", descending: true } }, { name: "launches", open: launches !== null }, { name: "idle_by_step" }, { name: "synchronization" }]),
    ]);
  },
};

/** Of a device and a cause the longest gap, as an address in the timeline. */
function longestGap(context: ViewContext, causes: Table, row: number, column: string): string | null {
  const each = context.table("idle");
  if (!each || !CAUSES.some(([name]) => name === column) || (causes.number(row, column) ?? 0) === 0) return null;
  const own = each.where("rank", causes.cell(row, "rank")).filter((gap) => each.cell(gap, "stream") === null && each.cell(gap, "device") === causes.cell(row, "device") && `${String(each.cell(gap, "cause"))}_ns` === column);
  const [longest] = each.sorted(own, { column: "max_ns", descending: true });
  const params = longest !== undefined && hasTimeline(context) ? eventParamsOf("idle", each, longest, "cause") : null;
  return params && context.router.href("timeline", { ...params, [WALK]: `idle.${longest}.cause` });
}

/** By rank, one bar for each device: its idle time by what the host did. */
function causes(context: ViewContext, table: Table): HTMLElement {
  const rows = table.sorted(table.rows(), { column: "rank", descending: false });
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  const devices = rows.length > table.distinct("rank").length;
  return stackedChart(context, {
    label: "Idle time of each device by host activity.", title: "Idle time by host activity", testId: "chart-idle", axis: "Rank",
    bars: rows.map((row) => `${String(table.cell(row, "rank"))}${devices ? ` (device ${String(table.cell(row, "device"))})` : ""}`),
    segments: CAUSES.map(([column, category, label]) => ({ category, label, values: pick(column) })),
    totals: { label: "Idle", values: pick("idle_ns") },
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  });
}

/** By rank, the share of its span in which the device waits for the host to launch. */
function bound(context: ViewContext, table: Table): HTMLElement | null {
  const rows = table.sorted(table.rows(), { column: "rank", descending: false });
  const values = rows.map((row) => table.number(row, "launch_bound_share"));
  if (values.every((value) => value === null)) return null;
  return h("div", {}, stackedChart(context, {
    label: "Share of each device’s span spent waiting for launches.", title: "Launch-bound time: share of the device’s span", testId: "chart-launch-bound", axis: "Rank",
    bars: rows.map((row) => String(table.cell(row, "rank"))), format: formatRatio,
    segments: [{ category: "runtime", label: "Launch-bound", values }],
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  }));
}

/** The critical path of a step: what the path across ranks has on each rank, and each rank's own path. */
import { stackedChart } from "../charts/stacked.ts";
import { text, type Part } from "../components/by_step.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import type { Cell } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import type { PathOf } from "../timeline/path.ts";
import { hasTimeline, leadTo, present, type View, type ViewContext } from "./view.ts";

/** They sum to `path_ns` exactly. */
const PARTS: readonly Part[] = [
  ["compute_ns", "compute", "Compute"], ["communication_ns", "communication", "Communication"], ["wait_ns", "waiting", "Waiting for a rank"],
  ["copies_ns", "memory", "Memory copies"], ["kernel_gap_ns", "idle", "Gaps between kernels"], ["launch_ns", "annotation", "Launch latency"],
  ["runtime_ns", "runtime", "Device runtime calls"], ["data_loading_ns", "data_loading", "Data loading"], ["host_op_ns", "host_op", "Host operators"],
  ["other_ns", "other", "Nothing recorded"],
];

export const criticalPath: View = {
  id: "critical_path",
  title: "Critical path",
  group: "step",
  question: "Which chain of work and waiting determines the step time?",
  answers: ["critical_path"],
  shows: ["critical_path"],
  wants: ["step_time"],
  render(context) {
    const table = context.table("critical_path");
    if (!table) {
      return [emptyState("No steps recorded.", "A critical path needs device or host activity: record CPU and device activities, and call `.step()` once per iteration.")];
    }
    const ranks = table.distinct("rank").length;
    return present([
      ranks > 1 ? oneStep(context, table) : h("div", {}, h("div", { class: "controls" }, events(context, table.number(0, "rank") ?? 0, table.number(0, "rank"), table.number(0, "step"))),
        bars(context, table, table.where("path", "rank"), "step", "Path of each step", "chart-critical-path")),
      tables(context, [{ name: "critical_path", open: true }]),
    ]);
  },
};

/** One step of several ranks: the longest, unless the reader has chosen another. */
function oneStep(context: ViewContext, table: Table): HTMLElement {
  const steps = table.distinct("step");
  const longest = table.sorted(table.rows(), { column: "path_ns", descending: true })[0] ?? 0;
  const wanted = context.place.params.get("step");
  const step: Cell = steps.find((each) => text(each) === wanted) ?? table.cell(longest, "step");
  const rows = table.sorted(table.where("step", step), { column: "rank", descending: false });
  const of = (path: string): number[] => rows.filter((row) => table.cell(row, "path") === path);
  const across = of("all ranks");
  return h("div", {},
    h("div", { class: "controls" }, selector("critical-path-step", "Step", steps.map((each) => ({ value: text(each), label: text(each) })), text(step), (value) => context.router.update({ step: value })),
      across.length > 0 && events(context, "all", null, typeof step === "number" ? step : null)),
    h("div", { class: "pair" },
      across.length > 0 && bars(context, table, across, "rank", "Path across all ranks, by the rank that it is on", "chart-critical-path-across"),
      bars(context, table, of("rank"), "rank", "Each rank’s own path", "chart-critical-path")));
}

function bars(context: ViewContext, table: Table, rows: readonly number[], by: "rank" | "step", title: string, testId: string): HTMLElement {
  return stackedChart(context, {
    label: `${title}.`, title, testId, axis: by === "rank" ? "Rank" : "Step", upright: by === "step", bars: rows.map((row) => text(table.cell(row, by))),
    segments: PARTS.map(([column, category, label]) => ({ category, label, values: rows.map((row) => table.number(row, column)) })),
    totals: { label: "On the path", values: rows.map((row) => table.number(row, "path_ns")) },
    onPick: (index) => {
      const row = rows[index] ?? 0;
      const [rank, at] = [table.number(row, "rank"), table.number(row, "step")];
      location.hash = (hasTimeline(context) ? onTimeline(context, table.cell(row, "path") === "rank" && rank !== null ? rank : "all", rank, at) : leadTo(context, rank, at)) ?? location.hash;
    },
  });
}

/** Where the path is drawn through its events. */
function events(context: ViewContext, path: PathOf, rank: number | null, step: number | null): HTMLElement {
  return hasTimeline(context) ? h("a", { class: "link", href: onTimeline(context, path, rank, step), "data-testid": "path-events" }, "Show on the timeline")
    : h("span", { class: "quiet-line" }, "The path is drawn on the timeline of ", h("code", {}, "rankscope serve"), ".");
}

function onTimeline(context: ViewContext, path: PathOf, rank: number | null, step: number | null): string {
  return context.router.href("timeline", { path, ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) });
}

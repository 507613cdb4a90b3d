/** What the old TensorBoard plugin's Distributed view had: two overviews by rank, the table of operations, the devices. */
import { barList } from "../components/bar_list.ts";
import { byStep, type Part } from "../components/by_step.ts";
import { h, named } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { swatch } from "../components/swatch.ts";
import { tables } from "../components/tables.ts";
import { counted } from "../format/ranks.ts";
import { formatBytes } from "../format/units.ts";
import { present, type View, type ViewContext } from "./view.ts";

const HIDING: readonly Part[] = [
  ["computation_ns", "compute", "Computation"], ["overlap_ns", "overlap", "Overlap"], ["exposed_communication_ns", "communication", "Exposed communication"], ["neither_ns", "other", "Neither"],
];
const WAITING: readonly Part[] = [
  ["transfer_ns", "transfer", "Transfer"], ["synchronizing_ns", "waiting", "Synchronizing"], ["unmatched_ns", "other", "Some ranks unknown"],
];
const TOP = 12;

export const distributed: View = {
  id: "distributed",
  title: "Distributed",
  group: "ranks",
  question: "Does communication overlap with computation, and is it transfer or waiting?",
  answers: ["distributed"],
  shows: ["distributed", "collective_summary_by_kind"],
  wants: ["overview"],
  tables: ["devices"],
  render(context) {
    const table = context.table("distributed");
    if (!table) {
      return present([emptyState("No steps recorded.", "Both overviews need steps and collectives: record with `rankscope.Profiler` on every rank, and include the backward pass in the recorded steps."), tables(context, [{ name: "devices", open: true }])]);
    }
    if (!table.hasAny("exposed_communication_ns", "overlap_ns")) return present([operations(context), tables(context, [{ name: "distributed" }, { name: "devices" }])]);
    const known = table.hasAny("transfer_ns", "synchronizing_ns");
    return present([
      byStep(context, "distributed", table, [
        { testId: "chart-computation-communication", title: "Computation and communication", about: "Computation, communication and their overlap.", parts: HIDING, whole: { column: "window_ns", label: "Window" } },
        ...(known ? [{ testId: "chart-synchronizing-communication", title: "Synchronizing and transfer", about: "Transfer and waiting within communication.", parts: WAITING }] : []),
      ], "ranks"),
      !known && h("p", { class: "quiet-box", "data-testid": "not-separated" }, "Waiting and transfer cannot be separated: that compares the same collective on all of its ranks, and these traces have none complete. Record every rank at the same steps and put their traces into one directory."),
      operations(context),
      tables(context, [{ name: "collective_summary_by_kind", open: true, rows: (table) => rankChoice(context, "operations", table).rows }, { name: "distributed" }, { name: "devices" }]),
    ]);
  },
};

function operations(context: ViewContext): HTMLElement | null {
  const table = context.table("collective_summary_by_kind");
  if (!table) return emptyState("No collectives in these traces.", "A single-rank job has none. With several ranks, record device activity (NCCL, RCCL, oneCCL) or, on CPU, Gloo ranges.");
  const { rows, mixed, control } = rankChoice(context, "operations", table);
  const known = rows.some((row) => table.number(row, "transfer_ns") !== null);
  const bars = table.sorted(rows, { column: "total_ns", descending: true }).slice(0, TOP).map((row) => {
    const [total, transfer, calls, size] = [table.number(row, "total_ns") ?? 0, table.number(row, "transfer_ns"), table.number(row, "calls") ?? 0, table.number(row, "mean_bytes")];
    return {
      label: [mixed ? `rank ${String(table.cell(row, "rank"))} · ` : null, named(String(table.cell(row, "collective") ?? "unnamed"), 60), size === null ? null : h("small", {}, ` · ${formatBytes(size)} on average`)],
      value: total, unit: "ns", category: known ? "waiting" as const : "communication" as const, note: counted(calls, "call"),
      ...(transfer === null ? {} : { pieces: [{ value: transfer, category: "transfer" as const }] }),
    };
  });
  const title = "Communication operations";
  return h("div", {}, control, h("figure", { class: "figure" }, h("figcaption", {}, title),
    known && h("ul", { class: "legend" }, h("li", { class: "legend-item" }, swatch("transfer"), "Transfer"), h("li", { class: "legend-item" }, swatch("waiting"), "Waiting or unknown")), barList(bars, title, "bars-operations")));
}

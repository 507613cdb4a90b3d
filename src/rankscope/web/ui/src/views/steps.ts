import { stackedChart } from "../charts/stacked.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import type { Cell } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import type { Category } from "../theme/categories.ts";
import type { View, ViewContext } from "./view.ts";

/** In the order of their precedence; they sum to `window_ns` exactly. */
const PARTS: readonly (readonly [string, Category, string])[] = [
  ["compute_ns", "compute", "Compute"],
  ["exposed_communication_ns", "communication", "Exposed communication"],
  ["exposed_memcpy_ns", "memory", "Exposed memory copies"],
  ["exposed_memset_ns", "memset", "Exposed memory sets"],
  ["runtime_ns", "runtime", "Device runtime calls"],
  ["data_loading_ns", "data_loading", "Data loading"],
  ["host_op_ns", "host_op", "Host operators"],
  ["other_ns", "other", "Other"],
];
const WHOLE = "whole file";

export const steps: View = {
  id: "steps",
  title: "Steps",
  question: "What fills a step, and does every rank fill it alike?",
  shows: ["step_time"],
  render(context) {
    const table = context.table("step_time");
    const analysis = context.payload.analyses.get("step_time");
    if (!table || !analysis) {
      return [emptyState("No step is known.", "No trace in this run could be read for its steps. Call `.step()` once an iteration, and record at least one active step.")];
    }
    const allRanks = table.distinct("rank");
    const allSteps = table.distinct("step");
    const { params } = context.place;
    const byStep = (params.get("by") ?? (allSteps.length === 1 && allRanks.length > 1 ? "ranks" : "steps")) === "ranks";
    const rank = chosen(allRanks, params.get("rank") ?? String(context.table("overview")?.cell(0, "slowest_rank") ?? ""));
    const step = chosen(allSteps, params.get("step") ?? "");
    const controls = h("div", { class: "controls" },
      selector("steps-by", "Show", [{ value: "steps", label: "the steps of one rank" }, { value: "ranks", label: "all ranks in one step" }],
        byStep ? "ranks" : "steps", (by) => context.router.update({ by })),
      byStep
        ? selector("steps-step", "Step", allSteps.map(choice), text(step), (value) => context.router.update({ step: value }))
        : selector("steps-rank", "Rank", allRanks.map(choice), text(rank), (value) => context.router.update({ rank: value })));
    return [
      h("div", {}, controls, byStep ? ranksOfStep(context, table, step) : stepsOfRank(context, table, rank),
        analysisCaption(analysis), truncationNote("step_time", analysis)),
      tableView(context, { name: "step_time", table, caption: analysis.title }),
    ];
  },
};

function stepsOfRank(context: ViewContext, table: Table, rank: Cell): HTMLElement {
  const rows = table.sorted(table.where("rank", rank), { column: table.has("start_ns") ? "start_ns" : "step", descending: false });
  return stacked(context, table, rows, `The steps of rank ${text(rank)}.`, "Step", names(table, rows, "step"), true,
    (index) => context.router.update({ by: "ranks", step: text(table.cell(rows[index] ?? 0, "step")) }));
}

function ranksOfStep(context: ViewContext, table: Table, step: Cell): HTMLElement {
  const rows = table.sorted(table.where("step", step), { column: "rank", descending: false });
  return stacked(context, table, rows, `Step ${text(step)} on all ranks.`, "Rank", names(table, rows, "rank"), false,
    (index) => context.router.update({ by: "steps", rank: text(table.cell(rows[index] ?? 0, "rank")) }));
}

function stacked(
  context: ViewContext, table: Table, rows: readonly number[], label: string, axis: string, bars: string[], upright: boolean, onPick: (index: number) => void,
): HTMLElement {
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  return stackedChart(context, {
    label, testId: "chart-step-time", axis, bars, upright, onPick,
    segments: PARTS.filter(([column]) => table.has(column)).map(([column, category, name]) => ({ category, label: name, values: pick(column) })),
    totals: { label: "Window", values: pick("window_ns") },
  });
}

function text(value: Cell): string {
  return value === null ? WHOLE : String(value);
}

/** Where a run was recorded in several windows, a step or a rank comes once in each. */
function names(table: Table, rows: readonly number[], column: string): string[] {
  const several = table.distinct("window").length > 1;
  return rows.map((row) => `${text(table.cell(row, column))}${several ? ` (window ${text(table.cell(row, "window"))})` : ""}`);
}

function choice(value: Cell): { value: string; label: string } {
  return { value: text(value), label: text(value) };
}

function chosen(values: readonly Cell[], wanted: string): Cell {
  return values.find((value) => text(value) === wanted) ?? values[0] ?? null;
}

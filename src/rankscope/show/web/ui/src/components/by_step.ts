/** Pictures of a table with a row for each rank and step: the steps of one rank, or all ranks in one step; the reader chooses. */
import { stackedChart } from "../charts/stacked.ts";
import type { Cell } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import type { Category } from "../theme/categories.ts";
import type { ViewContext } from "../views/view.ts";
import { selector } from "./controls.ts";
import { h } from "./dom.ts";

/** Column, color and word of one part of a bar. */
export type Part = readonly [string, Category, string];

export interface StepChart {
  readonly testId: string;
  /** The chart's title; none if it is the only one. */
  readonly title?: string;
  readonly about: string;
  readonly parts: readonly Part[];
  /** The total that the parts sum to; absent if no column has it. */
  readonly whole?: { readonly column: string; readonly label: string };
}

const WHOLE = "entire trace";

/**
 * The charts and their controls.
 * @param mostOf the column whose largest value chooses the rank that is shown first; else the slowest rank
 */
export function byStep(context: ViewContext, id: string, table: Table, charts: readonly StepChart[], first: "ranks" | "steps" = "steps", mostOf: string | null = null): HTMLElement {
  const allRanks = table.distinct("rank");
  const allSteps = table.distinct("step");
  const { params } = context.place;
  const several = allRanks.length > 1;
  const ranksFirst = several && (first === "ranks" || allSteps.length === 1);
  const byRank = (params.get("by") ?? (ranksFirst ? "ranks" : "steps")) === "ranks";
  const most = mostOf === null ? null : table.cell(table.sorted(table.rows(), { column: mostOf, descending: true })[0] ?? 0, "rank");
  const rank = chosen(allRanks, params.get("rank") ?? String(most ?? context.table("overview")?.cell(0, "slowest_rank") ?? ""));
  const step = chosen(allSteps, params.get("step") ?? "", Math.floor((allSteps.length - 1) / 2));
  const controls = h("div", { class: "controls" },
    selector(`${id}-by`, "Show", [{ value: "steps", label: "the steps of one rank" }, { value: "ranks", label: "all ranks in one step" }], byRank ? "ranks" : "steps", (by) => context.router.update({ by })),
    byRank ? selector(`${id}-step`, "Step", allSteps.map(choice), text(step), (value) => context.router.update({ step: value }))
      : selector(`${id}-rank`, "Rank", allRanks.map(choice), text(rank), (value) => context.router.update({ rank: value })));
  const rows = byRank ? table.sorted(table.where("step", step), { column: "rank", descending: false })
    : inOrder(table, table.where("rank", rank));
  const where = byRank ? `Step ${text(step)} on all ranks` : `The steps of rank ${text(rank)}`;
  const pictures = charts.map((chart) => stackedChart(context, {
    label: `${chart.about} ${where}.`, testId: chart.testId, axis: byRank ? "Rank" : "Step", upright: !byRank,
    ...(chart.title === undefined ? {} : { title: chart.title }),
    bars: names(table, rows, byRank ? "rank" : "step"),
    segments: chart.parts.filter(([column]) => table.has(column)).map(([column, category, label]) => ({ category, label, values: rows.map((row) => table.number(row, column)) })),
    ...(chart.whole ? { totals: { label: chart.whole.label, values: rows.map((row) => table.number(row, chart.whole?.column ?? "")) } } : {}),
    onPick: byRank ? (index) => context.router.update({ by: "steps", rank: text(table.cell(rows[index] ?? 0, "rank")) })
      : (index) => context.router.update({ by: "ranks", step: text(table.cell(rows[index] ?? 0, "step")) }),
  }));
  return h("div", {}, controls, pictures.length === 1 ? pictures : h("div", { class: "pair" }, pictures));
}

/** The rows of one rank by step; by window first where windows number their steps alike. Each trace has a clock of its own. */
export function inOrder(table: Table, rows: readonly number[]): number[] {
  const alike = new Set(rows.map((row) => table.cell(row, "step"))).size < rows.length;
  const at = (row: number, column: string): number => table.number(row, column) ?? -1;
  return [...rows].sort((a, b) => (alike ? at(a, "window") - at(b, "window") : 0) || at(a, "step") - at(b, "step"));
}

export function text(value: Cell): string {
  return value === null ? WHOLE : String(value);
}

/** Where a run was recorded in several windows, a step or a rank comes once in each. */
export function names(table: Table, rows: readonly number[], column: string): string[] {
  const several = table.distinct("window").length > 1;
  return rows.map((row) => `${text(table.cell(row, column))}${several ? ` (window ${text(table.cell(row, "window"))})` : ""}`);
}

function choice(value: Cell): { value: string; label: string } {
  return { value: text(value), label: text(value) };
}

function chosen(values: readonly Cell[], wanted: string, otherwise = 0): Cell {
  return values.find((value) => text(value) === wanted) ?? values[otherwise] ?? null;
}

import { stackedChart } from "../charts/stacked.ts";
import { answer } from "../components/answer.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import type { Table } from "../data/table.ts";
import { exactCell, formatRatio } from "../format/units.ts";
import { present, type View, type ViewContext } from "./view.ts";

/** What `rankscope measure` leaves in a run's directory. */
const MEASURED = ["measured_scaling", "measured_overhead", "measured_buckets", "measured_binding", "measured_profiler"] as const;

export const measured: View = {
  id: "scaling",
  title: "Scaling and overhead",
  group: "between",
  question: "What do more ranks bring, and what does communication cost?",
  answers: MEASURED,
  shows: [],
  wants: ["overview", ...MEASURED],
  tables: MEASURED,
  render(context) {
    const [scaling, overhead, ...variants] = MEASURED.map((name) => context.table(name));
    const any = [scaling, overhead, ...variants].some((table) => table !== null);
    return present([
      overheads(context, scaling ?? null, overhead ?? null),
      !any && emptyState("Nothing was measured beside this run.", "A trace tells what one run did, not what more ranks bring. `rankscope measure scaling train.py` runs the job at several sizes, `rankscope measure overhead train.py` with and without gradient synchronization; their results show here when they lie in the run’s directory (`scaling.json`, `overhead.json`)."),
      scaling && h("div", { class: "pair" }, efficiency(context, scaling), lost(context, scaling)),
      ...["measured_buckets", "measured_binding", "measured_profiler"].map((name) => changed(context, name)),
      tables(context, MEASURED.map((name) => ({ name, open: name === "measured_scaling" || name === "measured_overhead" }))),
    ]);
  },
};

/** Three shares that are all called communication overhead, each named for what it is. */
function overheads(context: ViewContext, scaling: Table | null, overhead: Table | null): HTMLElement {
  const largest = scaling ? scaling.sorted(scaling.rows(), { column: "ranks", descending: true }).find((row) => scaling.number(row, "derived_overhead") !== null) : undefined;
  const measured = overhead ?? scaling;
  const traced = measured?.number(overhead ? 0 : largest ?? 0, "traced_overhead") ?? null;
  const kinds = [
    { name: "measured", value: overhead?.number(0, "measured_overhead") ?? (largest === undefined ? null : scaling?.number(largest, "measured_overhead") ?? null), how: "(T with sync − T without) / T with, gradient synchronization off and on in turn", command: "rankscope measure overhead" },
    { name: "derived", value: largest === undefined ? null : scaling?.number(largest, "derived_overhead") ?? null, how: "1 − efficiency, at the most ranks that were measured", command: "rankscope measure scaling" },
    { name: "traced", value: traced ?? context.table("overview")?.number(0, "exposed_share") ?? null, how: `exposed communication by the steps’ windows, from ${traced === null ? "these traces" : "the traces of the job that was measured"}`, command: "" },
  ];
  return h("section", { "aria-labelledby": "overheads-title" }, h("h3", { id: "overheads-title" }, "Communication overhead, three ways"),
    h("dl", { class: "run-facts" }, kinds.map(({ name, value, how, command }) => h("div", {}, h("dt", {}, name),
      h("dd", { "data-testid": `overhead-${name}`, "data-value": value === null ? "" : String(value), title: exactCell(value, "ratio") },
        value === null ? ["not measured here", command === "" ? "" : [": ", h("code", {}, command)]] : h("strong", {}, formatRatio(value)), " ", h("small", {}, how))))));
}

function efficiency(context: ViewContext, table: Table): HTMLElement {
  const rows = table.rows().filter((row) => table.number(row, "efficiency") !== null);
  return h("div", {}, stackedChart(context, {
    label: "Efficiency by the number of ranks.", title: "Efficiency: speed-up by ranks", testId: "chart-efficiency", axis: "Size", format: formatRatio,
    bars: rows.map((row) => String(table.cell(row, "name") ?? table.cell(row, "ranks") ?? "?")),
    segments: [{ category: "compute", label: "Efficiency", values: rows.map((row) => table.number(row, "efficiency")) }],
  }));
}

/** Where a step is longer than the one that would be perfect. */
function lost(context: ViewContext, table: Table): HTMLElement | null {
  const rows = table.rows().filter((row) => table.number(row, "lost_ns") !== null);
  if (rows.length === 0) return null;
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  return h("div", {}, stackedChart(context, {
    label: "What a step lost against the perfect one, by size.", title: "What a step lost against the perfect one", testId: "chart-lost", axis: "Size",
    bars: rows.map((row) => String(table.cell(row, "name") ?? "?")),
    segments: [
      { category: "compute", label: "Compute", values: pick("lost_compute_ns") }, { category: "communication", label: "Exposed communication", values: pick("lost_communication_ns") },
      { category: "data_loading", label: "Data loading", values: pick("lost_data_loading_ns") }, { category: "other", label: "Other", values: pick("lost_other_ns") },
    ],
    totals: { label: "Lost", values: pick("lost_ns") },
  }));
}

/** Variants of one job beside each other. */
function changed(context: ViewContext, name: string): HTMLElement | null {
  const [table, headline] = [context.table(name), context.payload.analyses.get(name)?.headline];
  if (!table) return null;
  const rows = table.rows().filter((row) => table.number(row, "step_ns") !== null);
  const title = { measured_buckets: "The wrapper’s settings", measured_binding: "Binding to CPUs", measured_profiler: "The profiler’s cost" }[name] ?? name;
  return h("section", { "aria-labelledby": `title-${name}` }, h("h3", { id: `title-${name}` }, title), headline ? answer(name, headline) : null,
    rows.length === 0 ? null : stackedChart(context, {
      label: `${title}: step time of each variant.`, testId: `chart-${name}`, axis: "Variant",
      bars: rows.map((row) => String(table.cell(row, "name") ?? "?")), segments: [{ category: "compute", label: "Step", values: rows.map((row) => table.number(row, "step_ns")) }],
    }));
}

import { intervalsChart, type Point } from "../charts/intervals.ts";
import { stackedChart } from "../charts/stacked.ts";
import { answer } from "../components/answer.ts";
import { h, named } from "../components/dom.ts";
import { emptyState, workingState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import type { Table } from "../data/table.ts";
import { counted } from "../format/ranks.ts";
import { exactCell, formatDuration, formatRatio, significant } from "../format/units.ts";
import { scalingExample } from "./scaling_example.ts";
import { present, type View, type ViewContext } from "./view.ts";

/** The results of `rankscope measure` in a run's directory. */
const MEASURED = ["measured_scaling", "measured_projection", "measured_overhead", "measured_buckets", "measured_binding", "measured_profiler"] as const;

export const measured: View = {
  id: "scaling",
  title: "Scaling and overhead",
  group: "between",
  question: "How well does the job scale, and what does communication cost?",
  answers: MEASURED,
  shows: [],
  wants: ["overview", ...MEASURED],
  tables: MEASURED,
  render(context) {
    const [scaling, overhead] = [context.table("measured_scaling"), context.table("measured_overhead")];
    const any = MEASURED.some((name) => context.table(name) !== null);
    if (!any && context.served?.working) return [workingState("Reading the measurements …", null)];
    return present([
      jobs(context),
      scaling && h("div", { class: "pair" }, byRanks(context, scaling, "speed_up"), byRanks(context, scaling, "efficiency")),
      scaling && lost(context, scaling),
      !any && emptyState("No measurements for this run.", "A trace shows one run, not how the job scales. `rankscope measure scaling train.py` runs the job at several sizes, `rankscope measure overhead train.py` with and without gradient synchronization. The results appear here when `scaling.json` or `overhead.json` is in the run directory."),
      !any && scalingExample(context, SHARES),
      overheads(context, scaling, overhead),
      ...["measured_buckets", "measured_binding", "measured_profiler"].map((name) => changed(context, name)),
      tables(context, MEASURED.map((name) => ({ name, open: name === "measured_scaling" || name === "measured_overhead" }))),
    ]);
  },
};

/** What people call a size: `plain` is a process without a launcher, and the others are numbers of ranks. */
export function sizeName(table: Table, row: number): string {
  const [name, ranks] = [table.cell(row, "name"), table.number(row, "ranks")];
  if (name === "plain") return "plain process";
  const nodes = table.number(row, "nodes") ?? 1;
  return ranks === null ? String(name ?? "?") : counted(ranks, "rank") + (nodes > 1 ? ` on ${counted(nodes, "node")}` : "");
}

/** The measured jobs whose traces are served. */
function jobs(context: ViewContext): HTMLElement | null {
  const { served } = context;
  const found = (served?.runs ?? []).filter(({ folder }) => folder !== null && MEASURED.some((name) => context.table(name)?.where("run", folder).length));
  if (!served?.live || found.length === 0) return null;
  return h("p", { class: "quiet-line", "data-testid": "jobs" }, "Traces of the measured jobs: ", found.map(({ key, name }, index) => [index > 0 && " · ",
    h("a", { href: context.router.href("overview", { run: key }) }, named(name, 60))]));
}

/** Shares that are all called communication overhead, each named for what it is. */
function overheads(context: ViewContext, scaling: Table | null, overhead: Table | null): HTMLElement {
  const sizes = scaling ? scaling.sorted(scaling.rows(), { column: "ranks", descending: true }).filter((row) => scaling.number(row, "derived_overhead") !== null) : [];
  // A size with more ranks than cores does not measure communication, if there is another size.
  const largest = sizes.find((row) => scaling?.cell(row, "oversubscribed") !== true && (scaling?.number(row, "ranks") ?? 0) > 1) ?? sizes[0];
  const measured = overhead ?? scaling;
  const ends = (table: Table | null, row: number | undefined, column: string): [number, number] | null => {
    const [low, high] = [`${column}_low`, `${column}_high`].map((name) => (row === undefined ? null : table?.number(row, name) ?? null));
    return low == null || high == null ? null : [low, high];
  };
  const row = overhead ? 0 : largest ?? 0;
  const traced = measured?.number(row, "traced_overhead") ?? null;
  const kinds = [
    { name: "measured", value: overhead?.number(0, "measured_overhead") ?? (largest === undefined ? null : scaling?.number(largest, "measured_overhead") ?? null), ends: overhead ? ends(overhead, 0, "measured_overhead") : ends(scaling, largest, "measured_overhead"), verdict: overhead?.cell(0, "verdict") ?? null, how: measured?.meta("measured_overhead").doc || "(T sync − T no sync) / T sync of the whole step, with gradient synchronization off and on in turn", command: "rankscope measure overhead" },
    overhead && { name: "forward and backward", value: overhead.number(0, "forward_backward_overhead"), ends: ends(overhead, 0, "forward_backward_overhead"), verdict: null, how: overhead.meta("forward_backward_overhead").doc, command: "rankscope measure overhead" },
    { name: "derived", value: largest === undefined ? null : scaling?.number(largest, "derived_overhead") ?? null, ends: ends(scaling, largest, "derived_overhead"), verdict: null, how: `1 − efficiency${largest === undefined || scaling === null ? "" : `, on ${sizeName(scaling, largest)}`}`, command: "rankscope measure scaling" },
    { name: "traced", value: traced ?? context.table("overview")?.number(0, "exposed_share") ?? null, ends: null, verdict: null, how: `exposed communication / step windows, from ${traced === null || measured === null ? "these traces" : tracedJob(measured, row)}`, command: "" },
  ].filter((kind) => kind !== null);
  return h("section", { "aria-labelledby": "overheads-title" }, h("h3", { id: "overheads-title" }, "Communication overhead by its definitions"),
    h("dl", { class: "run-facts" }, kinds.map(({ name, value, ends: interval, verdict, how, command }) => h("div", {}, h("dt", {}, name),
      h("dd", { "data-testid": `overhead-${name.replaceAll(" ", "-")}`, "data-value": value === null ? "" : String(value), title: exactCell(value, "ratio") },
        value === null ? ["not measured", command === "" ? "" : [" (", h("code", {}, command), ")"]] : [h("strong", {}, formatRatio(value)), interval && ` (${formatRatio(interval[0])} to ${formatRatio(interval[1])})`, verdict !== null && `: ${String(verdict)}`], " ", h("small", {}, how))))));
}

/** Which rank of the measured job the traced share is of, and how much of it is waiting. */
function tracedJob(table: Table, row: number): string {
  const [rank, exposed, waiting] = ["traced_rank", "traced_exposed_ns", "traced_wait_ns"].map((name) => table.number(row, name));
  const waits = exposed == null ? "" : waiting == null ? "; waiting and transfer cannot be separated" : `; ${formatDuration(waiting, 3)} of ${formatDuration(exposed, 3)} per step waiting for other ranks`;
  return `the traces of the measured job, of the worst rank${rank == null ? "" : ` (rank ${rank})`}${waits}`;
}

const SHARES = {
  speed_up: { title: "Speed-up", label: "Speed-up by the number of ranks.", perfect: (ranks: number) => ranks, doubling: true, format: (value: number) => `${significant(value, 3)}×` },
  efficiency: { title: "Efficiency: speed-up by ranks", label: "Efficiency by the number of ranks.", perfect: () => 1, doubling: false, format: formatRatio },
} as const;

/** The measured sizes, and the projection of the fitted law to larger ones. They are compared with the plain process. */
function byRanks(context: ViewContext, table: Table, column: keyof typeof SHARES): HTMLElement {
  const points = (of: Table | null, rows: readonly number[]): Point[] => rows.flatMap((row) => {
    const [ranks, value] = [of?.number(row, "ranks") ?? null, of?.number(row, column) ?? null];
    return of === null || ranks === null || value === null ? [] : [{ ranks, value, low: of.number(row, `${column}_low`), high: of.number(row, `${column}_high`) }];
  });
  const sizes = table.sorted(table.rows(), { column: "ranks", descending: false }).filter((row) => table.cell(row, "name") !== "plain");
  const over = (row: number): boolean => table.cell(row, "oversubscribed") === true;
  const projection = context.table("measured_projection");
  return intervalsChart(context, {
    ...SHARES[column], testId: `chart-${column.replace("_", "-")}`,
    measured: points(table, sizes.filter((row) => !over(row))), oversubscribed: points(table, sizes.filter(over)), projected: points(projection, projection?.rows() ?? []),
  });
}

/** Where a step is longer than the one that would be perfect. */
function lost(context: ViewContext, table: Table): HTMLElement | null {
  const rows = table.rows().filter((row) => table.number(row, "lost_ns") !== null);
  if (rows.length === 0) return null;
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  return h("div", {}, stackedChart(context, {
    label: "Time lost per step against perfect scaling, by size.", title: "Time lost per step against perfect scaling", testId: "chart-lost", axis: "",
    bars: rows.map((row) => sizeName(table, row)),
    segments: [
      { category: "compute", label: "Compute", values: pick("lost_compute_ns") }, { category: "communication", label: "Exposed communication", values: pick("lost_communication_ns") },
      { category: "data_loading", label: "Data loading", values: pick("lost_data_loading_ns") }, { category: "other", label: "Other", values: pick("lost_other_ns") },
    ],
    totals: { label: "Lost", values: pick("lost_ns") },
  }));
}

/** Variants of one job side by side. */
function changed(context: ViewContext, name: string): HTMLElement | null {
  const [table, headline] = [context.table(name), context.payload.analyses.get(name)?.headline];
  if (!table) return null;
  const rows = table.rows().filter((row) => table.number(row, "step_ns") !== null);
  const title = { measured_buckets: "Wrapper settings", measured_binding: "CPU binding", measured_profiler: "Profiler overhead" }[name] ?? name;
  return h("section", { "aria-labelledby": `title-${name}` }, h("h3", { id: `title-${name}` }, title), headline ? answer(name, headline) : null,
    rows.length === 0 ? null : stackedChart(context, {
      label: `${title}: step time of each variant.`, testId: `chart-${name}`, axis: "",
      bars: rows.map((row) => String(table.cell(row, "name") ?? "?")), segments: [{ category: "compute", label: "Step", values: rows.map((row) => table.number(row, "step_ns")) }],
    }));
}

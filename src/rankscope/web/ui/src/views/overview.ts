import { heatSections } from "./heat.ts";
import { stackedDeviceTime } from "./ranks.ts";
import { stackedChart } from "../charts/stacked.ts";
import { barList } from "../components/bar_list.ts";
import { h, named } from "../components/dom.ts";
import { findingsList } from "../components/findings.ts";
import { headline } from "../components/headline.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { formatRatio } from "../format/units.ts";
import { leadTo, present, type View, type ViewContext } from "./view.ts";

const TOP = 8;

export const overview: View = {
  id: "overview",
  title: "Overview",
  group: "run",
  question: "Where does the time go, and which rank holds the others up?",
  answers: ["overview"],
  shows: ["overview"],
  wants: ["device_time", "step_time", "stragglers", "utilization"],
  render(context) {
    const table = context.table("overview");
    const ranks = stackedDeviceTime(context);
    const comes = context.served?.working === true;
    return present([
      table ? headline(table, context.table("stragglers")) : context.served
        ? emptyState("There is no overview of this run.", "It is made from every rank that could be read: the findings say what is wrong with the files.")
        : emptyState("This report holds no overview.", "Write it again with `rankscope report DIR`: the overview is made from every rank that could be read."),
      h("section", { "aria-labelledby": "findings-title" }, h("h3", { id: "findings-title" }, "Findings"), savings(context), findingsList(context)),
      context.served && heatSections(context, context.served),
      h("section", { "aria-labelledby": "ranks-title" },
        h("div", { class: "section-head" }, h("h3", { id: "ranks-title" }, "Time on each rank"), ranks && h("a", { href: context.router.href("ranks") }, "Table and definitions")),
        ranks ?? (comes ? h("p", { class: "quiet-box" }, "The ranks’ device time is still being worked out.") : emptyState("No rank’s device time is known.", "No trace in this run holds device events. What the host did stands under Steps."))),
      utilization(context),
      tables(context, [{ name: "overview" }, { name: "utilization" }]),
    ]);
  },
};

/** What mending each would save at most, side by side, where there is more than one to choose from. */
function savings(context: ViewContext): HTMLElement | null {
  const found = context.payload.findings.filter(({ saving_ns: saving }) => saving !== null && saving > 0).sort((x, y) => (y.saving_ns ?? 0) - (x.saving_ns ?? 0));
  if (found.length < 2) return null;
  const title = "What a step would gain at most, finding by finding";
  const bars = found.slice(0, TOP).map((finding) => ({ label: named(finding.title, 120), value: finding.saving_ns ?? 0, unit: "ns", category: "memory" as const }));
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-savings"));
}

/** How much of its time each device ran kernels. */
function utilization(context: ViewContext): HTMLElement | null {
  const table = context.table("utilization");
  if (!table) return null;
  const rows = table.sorted(table.rows(), { column: "rank", descending: false }).filter((row) => table.number(row, "utilization") !== null);
  if (rows.length === 0) return null;
  const several = rows.length > table.distinct("rank").length;
  return h("section", { "aria-labelledby": "utilization-title" }, h("h3", { id: "utilization-title" }, "Utilization of each device"), stackedChart(context, {
    label: "Share of each device’s time in which kernels ran.", testId: "chart-utilization", axis: "Rank", format: formatRatio,
    bars: rows.map((row) => `${String(table.cell(row, "rank"))}${several ? ` (device ${String(table.cell(row, "device"))})` : ""}`),
    segments: [{ category: "compute", label: "Kernels ran", values: rows.map((row) => table.number(row, "utilization")) }],
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  }));
}

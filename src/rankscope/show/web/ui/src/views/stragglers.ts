import { stackedChart } from "../charts/stacked.ts";
import { barList } from "../components/bar_list.ts";
import { selector } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { findingItems } from "../components/findings.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { compareCells, type Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { formatRatio } from "../format/units.ts";
import { heatPlaces } from "./heat.ts";
import { leadTo, present, type View, type ViewContext } from "./view.ts";

const TOP = 12;
/** Findings that identify a straggler and its cause. */
const STRAGGLER_FINDINGS = new Set(["straggler", "stall", "slow-network", "imbalance", "mesh-imbalance"]);

export const stragglers: View = {
  id: "stragglers",
  title: "Stragglers",
  group: "ranks",
  question: "Which rank delays the others, why, and what is the evidence?",
  answers: ["stragglers"],
  shows: ["stragglers"],
  wants: ["collective_summary_by_rank", "overview", "step_time"],
  tables: ["collective_summary_by_rank"],
  render(context) {
    const table = context.table("stragglers");
    const alone = context.payload.run.ranks.length === 1;
    if (!table || alone) {
      return present([emptyState(alone ? "A single-rank run has no stragglers." : "No collective was matched across ranks.",
        alone ? "Stragglers are found by comparing ranks. Gather the traces of all ranks; `rankscope serve DIR` reads the entire directory." : "Ranks are compared at their collectives: record device activity (NCCL, RCCL, oneCCL) or, on CPU, Gloo ranges, on several ranks in the same steps."),
      !alone && tables(context, [{ name: "stragglers" }])]);
    }
    const evidence = context.payload.findings.filter(({ id }) => STRAGGLER_FINDINGS.has(id));
    return present([
      evidence.length > 0 && h("section", { "aria-labelledby": "evidence-title" }, h("h3", { id: "evidence-title" }, "Evidence"), findingItems(context, evidence)),
      h("div", { class: "pair" }, waited(context, table), order(context)),
      context.served && heatPlaces(context, context.served).map,
      tables(context, [{ name: "stragglers", open: true, sort: { column: "waited_ns", descending: true } }, { name: "collective_summary_by_rank" }]),
    ]);
  },
};

/** The wait that each rank caused on the others. */
function waited(context: ViewContext, table: Table): HTMLElement {
  const rows = table.sorted(table.rows(), { column: "waited_ns", descending: true }).filter((row) => (table.number(row, "waited_ns") ?? 0) > 0).slice(0, TOP);
  if (rows.length === 0) return h("p", { class: "quiet-box" }, "No rank made the others wait.");
  const bars = rows.map((row) => {
    const [rank, share, cause] = [table.number(row, "rank"), table.number(row, "last_share"), table.cell(row, "cause")];
    const href = leadTo(context, rank);
    return {
      label: [`Rank ${rank}`, cause === null ? null : h("small", {}, " · ", named(String(cause).replaceAll("_", " "), 40))], value: table.number(row, "waited_ns") ?? 0, unit: "ns", category: "waiting" as const,
      ...(href === null ? {} : { href }), ...(share === null ? {} : { note: `last in ${formatRatio(share)}` }),
    };
  });
  const title = "Wait caused on other ranks";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-stragglers"));
}

/** Of one group how often each rank came first and last: at first the group in which the straggler was last most often, else the one with the most collectives. */
export function order(context: ViewContext): HTMLElement | null {
  const table = context.table("collective_summary_by_rank");
  if (!table) return null;
  const culprit = context.payload.diagnosis?.stragglers.ranks[0];
  const own = culprit === undefined ? [] : table.sorted(table.where("rank", culprit), { column: "last", descending: true });
  const top = own[0] ?? table.sorted(table.rows(), { column: "collectives", descending: true })[0] ?? 0;
  const groups = table.distinct("group").map((each) => String(each ?? "")).sort(compareCells);
  const group = groups.find((each) => each === context.place.params.get("group")) ?? String(table.cell(top, "group") ?? "");
  const rows = table.sorted(table.where("group", table.cell(table.rows().find((row) => String(table.cell(row, "group") ?? "") === group) ?? 0, "group")), { column: "rank", descending: false });
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  const choose = groups.length > 1 && h("div", { class: "controls" }, selector("arrivals-group", "Group", groups.map((value) => ({ value, label: shownName(value, 60) })), group, (value) => context.router.update({ group: value })));
  return h("div", {}, choose, stackedChart(context, {
    label: "Arrival order.", title: "Arrival order, number of collectives", testId: "chart-arrivals", axis: "Rank",
    bars: rows.map((row) => String(table.cell(row, "rank"))), format: (value) => String(value),
    segments: [{ category: "transfer", label: "First", values: pick("first") }, { category: "idle", label: "In between or too close to tell", values: pick("between") }, { category: "waiting", label: "Last", values: pick("last") }],
    totals: { label: "Collectives", values: pick("collectives") },
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  }));
}

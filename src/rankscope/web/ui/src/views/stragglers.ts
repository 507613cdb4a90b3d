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
import { heatSections } from "./heat.ts";
import { leadTo, present, type View, type ViewContext } from "./view.ts";

const TOP = 12;
/** Findings that say who holds the others up, and why. */
const SAID = new Set(["straggler", "slow-network", "imbalance", "mesh-imbalance"]);

export const stragglers: View = {
  id: "stragglers",
  title: "Stragglers",
  group: "ranks",
  question: "Which rank holds the others up, why, and what says so?",
  answers: ["stragglers"],
  shows: ["stragglers"],
  wants: ["arrivals", "overview", "step_time"],
  tables: ["arrivals"],
  render(context) {
    const table = context.table("stragglers");
    const alone = context.payload.run.ranks.length === 1;
    if (!table) {
      return present([emptyState(alone ? "One rank alone holds nobody up." : "No collective was matched across ranks.",
        alone ? "Stragglers are told by comparing ranks: gather the traces of all of them, `rankscope serve DIR` reads the whole directory." : "Ranks are compared where they meet: record the device’s activity (nccl, rccl, oneccl), or on CPU gloo’s ranges, on several ranks in the same steps."),
      tables(context, [{ name: "stragglers" }])]);
    }
    const said = context.payload.findings.filter(({ id }) => SAID.has(id));
    return present([
      said.length > 0 && h("section", { "aria-labelledby": "evidence-title" }, h("h3", { id: "evidence-title" }, "What says so"), findingItems(context, said)),
      h("div", { class: "pair" }, waited(context, table), order(context)),
      context.served && heatSections(context, context.served, false),
      tables(context, [{ name: "stragglers", open: true, sort: { column: "waited_ns", descending: true } }, { name: "arrivals" }]),
    ]);
  },
};

/** By rank, how long the others waited for it. */
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
  const title = "How long the others waited for it";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-stragglers"));
}

/** Of one group, at first the one with the most collectives, how often each rank came first and last. */
export function order(context: ViewContext): HTMLElement | null {
  const table = context.table("arrivals");
  if (!table) return null;
  const top = table.sorted(table.rows(), { column: "collectives", descending: true })[0] ?? 0;
  const groups = table.distinct("group").map((each) => String(each ?? "")).sort(compareCells);
  const group = groups.find((each) => each === context.place.params.get("group")) ?? String(table.cell(top, "group") ?? "");
  const rows = table.sorted(table.where("group", table.cell(table.rows().find((row) => String(table.cell(row, "group") ?? "") === group) ?? 0, "group")), { column: "rank", descending: false });
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  const choose = groups.length > 1 && h("div", { class: "controls" }, selector("arrivals-group", "Group", groups.map((value) => ({ value, label: shownName(value, 60) })), group, (value) => context.router.update({ group: value })));
  return h("div", {}, choose, stackedChart(context, {
    label: "Order of arrival.", title: "Order of arrival", testId: "chart-arrivals", axis: "Rank",
    bars: rows.map((row) => String(table.cell(row, "rank"))), format: (value) => String(value),
    segments: [{ category: "transfer", label: "Came first", values: pick("first") }, { category: "idle", label: "Between, or too close to tell", values: pick("between") }, { category: "waiting", label: "Came last", values: pick("last") }],
    totals: { label: "Collectives", values: pick("collectives") },
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank")) ?? location.hash; },
  }));
}

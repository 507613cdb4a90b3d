import { barList } from "../components/bar_list.ts";
import { selector } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import type { Table } from "../data/table.ts";
import { grouped } from "../format/units.ts";
import { categoryOf } from "../theme/categories.ts";
import type { View } from "./view.ts";

const TOP = 15;
const ALL = "all";

export const kernels: View = {
  id: "kernels",
  title: "Kernels",
  question: "Which kernels does the device spend its time in?",
  shows: ["kernels"],
  render(context) {
    const table = context.table("kernels");
    const analysis = context.payload.analyses.get("kernels");
    if (!table || !analysis) {
      return [emptyState("These traces hold no kernel.", "A job on CPU runs none. On an accelerator, record its activity: `rankscope.Profiler` does so by itself where one is there.")];
    }
    const order = { column: "total_ns", descending: true };
    const ranked = table.has("rank") && table.distinct("rank").length > 1;
    const ranks = ranked ? table.distinct("rank") : [];
    const wanted = context.place.params.get("rank") ?? String(context.table("overview")?.cell(0, "slowest_rank") ?? "");
    const rank = wanted === ALL ? null : ranks.find((value) => String(value) === wanted) ?? ranks[0] ?? null;
    const rows = ranked && rank !== null ? table.where("rank", rank) : table.rows();
    const control = ranked && h("div", { class: "controls" }, selector("kernels-rank", "Rank",
      [...ranks.map((value) => ({ value: String(value), label: String(value) })), { value: ALL, label: "all ranks" }],
      rank === null ? ALL : String(rank), (value) => context.router.update({ rank: value })));
    return [
      h("div", {}, control, topKernels(table, table.sorted(rows, order), ranked && rank === null), analysisCaption(analysis), truncationNote("kernels", analysis)),
      tableView(context, { name: "kernels", table, rows, caption: analysis.title, sort: order }),
    ];
  },
};

function topKernels(table: Table, rows: readonly number[], sayRank: boolean): HTMLElement {
  const bars = rows.slice(0, TOP).map((row) => {
    const calls = table.number(row, "calls");
    return {
      label: [sayRank ? `rank ${String(table.cell(row, "rank"))} · ` : null, named(String(table.cell(row, "name") ?? "unnamed"), 110)],
      value: table.number(row, "total_ns") ?? 0, unit: "ns", category: categoryOf(table.cell(row, "category")),
      ...(calls === null ? {} : { note: `in ${grouped(calls)} ${calls === 1 ? "call" : "calls"}` }),
    };
  });
  const title = rows.length > TOP ? `The ${TOP} kernels with the most time, of ${grouped(rows.length)}` : "Kernels by time";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-kernels"));
}

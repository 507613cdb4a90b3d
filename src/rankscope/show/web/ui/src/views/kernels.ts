import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { tables } from "../components/tables.ts";
import { topNames } from "../components/top_names.ts";
import { categoryOf } from "../theme/categories.ts";
import { present, type View } from "./view.ts";

export const kernels: View = {
  id: "kernels",
  title: "Kernels",
  group: "work",
  question: "Which kernels take the most device time?",
  answers: ["kernels"],
  shows: ["kernels"],
  wants: ["overview"],
  tables: ["matrix_work", "copies"],
  render(context) {
    const table = context.table("kernels");
    if (!table) {
      return [emptyState("No kernels in these traces.", "A CPU-only job runs none. On an accelerator, record its activity; `rankscope.Profiler` does so automatically.")];
    }
    const choice = rankChoice(context, "kernels", table);
    return present([
      h("div", {}, choice.control, topNames(context, table, choice, { testId: "bars-kernels", analysis: "kernels", name: "name", column: "total_ns", title: "Kernels by time", category: (row) => categoryOf(table.cell(row, "category")) })),
      tables(context, [{ name: "kernels", open: true, rows: () => choice.rows, sort: { column: "total_ns", descending: true } }, { name: "matrix_work" }, { name: "copies" }]),
    ]);
  },
};

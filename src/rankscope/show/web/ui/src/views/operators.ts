import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { tables } from "../components/tables.ts";
import { topNames } from "../components/top_names.ts";
import { present, type View } from "./view.ts";

const AMOUNTS = [
  ["device_self_ns", "device self time", "compute"], ["device_total_ns", "device total time", "compute"],
  ["host_self_ns", "host self time", "host_op"], ["host_total_ns", "host total time", "host_op"],
] as const;

export const operators: View = {
  id: "operators",
  title: "Operators",
  group: "work",
  question: "Which operators cost the most, on the device and on the host?",
  answers: ["operators"],
  shows: ["operators"],
  wants: ["overview"],
  tables: ["annotations", "compile", "slices", "work"],
  render(context) {
    const table = context.table("operators");
    if (!table) {
      return present([emptyState("No operators in these traces.", "Operators come from CPU activity: keep `ProfilerActivity.CPU` on, as `rankscope.Profiler` does."), tables(context, [{ name: "annotations" }])]);
    }
    const known = AMOUNTS.filter(([column]) => table.hasAny(column));
    const [column, words, category] = known.find(([name]) => name === context.place.params.get("show")) ?? known[0] ?? AMOUNTS[2];
    const choice = rankChoice(context, "operators", table);
    const show = selector("operators-show", "Show:", known.map(([value, label]) => ({ value, label })), column, (value) => context.router.update({ show: value }));
    return present([
      h("div", {}, h("div", { class: "controls" }, choice.control?.childNodes[0] ?? null, known.length > 1 && show),
        topNames(context, table, choice, { testId: "bars-operators", analysis: "operators", name: "name", column, title: `Operators by ${words}`, category: () => category })),
      tables(context, [{ name: "operators", open: true, rows: () => choice.rows, sort: { column, descending: true } }, { name: "annotations" }, { name: "compile" }, { name: "slices" }, { name: "work", sort: { column: "total_ns", descending: true } }]),
    ]);
  },
};

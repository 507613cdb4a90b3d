/** Any analysis without a dedicated view: its docstring as caption, the charts that it declares, its rows as a table. New analyses appear without a change here. */
import { h } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { tableView } from "../components/table_view.ts";
import { analysisFailed } from "../components/tables.ts";
import { topNames } from "../components/top_names.ts";
import type { AnalysisPayload } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import { shortTitle } from "../format/text.ts";
import { present, type View, type ViewContext } from "./view.ts";

/** The charts that the analysis declares, of one rank where it has rows of several. */
function charts(context: ViewContext, name: string, table: Table): Node[] {
  const specs = context.payload.analyses.get(name)?.charts ?? [];
  if (specs.length === 0) return [];
  const byRank = table.has("rank") && specs.every((spec) => spec.name !== "rank");
  const choice = byRank ? rankChoice(context, name, table) : { rows: table.rows(), mixed: false, control: null };
  return present([choice.control, ...specs.map((spec, index) =>
    topNames(context, table, choice, { testId: `bars-${name}-${index}`, analysis: name, name: spec.name, column: spec.value, title: spec.title, category: () => "compute" }))]);
}

export function analysisView(name: string, analysis: AnalysisPayload, id = name): View {
  return {
    id,
    title: shortTitle(name),
    group: "tables",
    question: analysis.title,
    answers: [name],
    shows: [name],
    render(context) {
      const table = context.table(name);
      const words = h("div", {}, analysisCaption(analysis), truncationNote(name, analysis));
      if (context.payload.analyses.get(name)?.away?.state === "failed") return [words, analysisFailed()];
      if (!table) return [words, emptyState("This analysis has no rows.", "The traces contain no data for it. Its description lists what it needs.")];
      return [words, ...charts(context, name, table), tableView(context, { name, table, caption: analysis.title })];
    },
  };
}

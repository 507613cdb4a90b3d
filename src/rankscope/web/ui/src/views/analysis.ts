/** Any analysis without a dedicated view: its docstring as caption, its rows as a table. New analyses appear without a change here. */
import { h } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { analysisFailed } from "../components/tables.ts";
import type { AnalysisPayload } from "../data/payload.ts";
import { shortTitle } from "../format/text.ts";
import type { View } from "./view.ts";

export function analysisView(name: string, analysis: AnalysisPayload): View {
  return {
    id: name,
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
      return [words, tableView(context, { name, table, caption: analysis.title })];
    },
  };
}

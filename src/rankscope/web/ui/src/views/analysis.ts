/** Any analysis without a view of its own: its words as caption, its rows as a table. New ones appear without a change here. */
import { h } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { notMade } from "../components/tables.ts";
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
      if (context.payload.analyses.get(name)?.away?.state === "failed") return [words, notMade()];
      if (!table) return [words, emptyState("This analysis gave no rows.", "The traces hold nothing for it; its description says what it reads.")];
      return [words, tableView(context, { name, table, caption: analysis.title })];
    },
  };
}

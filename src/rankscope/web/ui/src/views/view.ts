/** What a view is, and what it is given. One file a view; registry.ts puts them in order. */
import type { Place, Router } from "../app/router.ts";
import type { AnalysisPayload, Payload } from "../data/payload.ts";
import type { Served } from "../data/served.ts";
import { Table } from "../data/table.ts";

export interface ViewContext {
  readonly payload: Payload;
  readonly place: Place;
  readonly router: Router;
  /** The table of an analysis, or null where the report has none or it is empty. */
  table(name: string): Table | null;
  /** The server, or null in a report. */
  readonly served: Served | null;
  /** Runs when the reader leaves the view. */
  onLeave(done: () => void): void;
  /** The view takes changes of its own place (Back, a link) itself, instead of being drawn anew. */
  onPlace(move: (place: Place) => void): void;
}

export interface View {
  readonly id: string;
  readonly title: string;
  /** The question that the view answers: its first line. */
  readonly question: string;
  /** Analyses that it shows, so that they do not appear a second time as bare tables. */
  readonly shows: readonly string[];
  /** Further analyses that it uses where they are there, and does not wait for. */
  readonly wants?: readonly string[];
  render(context: ViewContext): Node[];
}

/** Tables are made once a payload, not once a view: their search index and their columns stay. */
export function tablesOf(payload: Payload): (name: string) => Table | null {
  const made = new Map<string, { analysis: AnalysisPayload; table: Table }>();
  return (name) => {
    const analysis = payload.analyses.get(name);
    if (!analysis || analysis.away) return null;
    const kept = made.get(name);
    const table = kept?.analysis === analysis ? kept.table : new Table(analysis);
    made.set(name, { analysis, table });
    return table.length > 0 ? table : null;
  };
}

/** What a view is, and what it is given. One file a view; registry.ts puts them in order. */
import type { Place, Router } from "../app/router.ts";
import type { Payload } from "../data/payload.ts";
import { Table } from "../data/table.ts";

export interface ViewContext {
  readonly payload: Payload;
  readonly place: Place;
  readonly router: Router;
  /** The table of an analysis, or null where the report has none or it is empty. */
  table(name: string): Table | null;
  /** Runs when the reader leaves the view. */
  onLeave(done: () => void): void;
}

export interface View {
  readonly id: string;
  readonly title: string;
  /** The question that the view answers: its first line. */
  readonly question: string;
  /** Analyses that it shows, so that they do not appear a second time as bare tables. */
  readonly shows: readonly string[];
  render(context: ViewContext): Node[];
}

/** Tables are made once a payload, not once a view: their search index and their columns stay. */
export function tablesOf(payload: Payload): (name: string) => Table | null {
  const made = new Map<string, Table>();
  return (name) => {
    const analysis = payload.analyses.get(name);
    if (!analysis) return null;
    const table = made.get(name) ?? new Table(analysis);
    made.set(name, table);
    return table.length > 0 ? table : null;
  };
}

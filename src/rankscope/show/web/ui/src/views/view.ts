/** What a view is, and what it is given. One file a view; registry.ts puts them in order. */
import type { Place, Router } from "../app/router.ts";
import type { AnalysisPayload, Payload } from "../data/payload.ts";
import type { Source } from "../data/source.ts";
import { Table } from "../data/table.ts";

export interface ViewContext {
  readonly payload: Payload;
  readonly place: Place;
  readonly router: Router;
  /** The table of an analysis, or null where the report has none or it is empty. */
  table(name: string): Table | null;
  /** The id of the view that shows an analysis. */
  homeOf(analysis: string): string;
  /** The server, or null in a report. */
  readonly served: Source | null;
  /** Runs when the reader leaves the view. */
  onLeave(done: () => void): void;
  /** The view takes changes of its own place (Back, a link) itself, instead of being redrawn. */
  onPlace(move: (place: Place) => void): void;
}

/** The section of the list that a view is in. */
export type Group = "run" | "ranks" | "step" | "work" | "between" | "tables";

export interface View {
  readonly id: string;
  readonly title: string;
  readonly group: Group;
  /** The question that the view answers. */
  readonly question: string;
  /** Analyses whose headline answers the question: the first that has one. */
  readonly answers?: readonly string[];
  /** Analyses that it needs, and waits for. */
  readonly shows: readonly string[];
  /** Further analyses that it uses where they are there, and does not wait for. */
  readonly wants?: readonly string[];
  /** Analyses whose tables it offers, fetched when they are opened. None of these gets a generic view as well. */
  readonly tables?: readonly string[];
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

/** Whether there is a timeline to lead to. */
export function hasTimeline(context: Pick<ViewContext, "served">): boolean {
  return context.served !== null;
}

/** Whether the page has a server that can compare runs; a report with its own timeline has none. */
export function isLive(served: Source | null): served is Source {
  return served?.live === true;
}

/** Where a rank, and a step of it, can be seen: in the timeline, else among its steps; null where there is neither. */
export function leadTo(context: ViewContext, rank: number | null, step: number | null = null): string | null {
  const place = { ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) };
  if (hasTimeline(context)) return context.router.href("timeline", place);
  return context.table("step_time") === null ? null : context.router.href("steps", place);
}

/** The parts of a view that there are. */
export function present(parts: readonly (Node | null | undefined | false)[]): Node[] {
  return parts.filter((part): part is Node => part instanceof Node);
}

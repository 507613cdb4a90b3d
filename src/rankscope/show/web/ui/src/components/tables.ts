/** The tables of a view's charts: one click away, and fetched from a server only then. */
import type { Sort, Table } from "../data/table.ts";
import { shortTitle, shownName } from "../format/text.ts";
import { counted } from "../format/ranks.ts";
import type { ViewContext } from "../views/view.ts";
import { sentence } from "./answer.ts";
import { inline } from "./doc_text.ts";
import { h, named } from "./dom.ts";
import { rowParam } from "./event_link.ts";
import { analysisCaption, emptyState, errorState, truncationNote, workingState } from "./notes.ts";
import { tableView, type TableOptions } from "./table_view.ts";

export interface Fold {
  readonly name: string;
  /** Shown at once. */
  readonly open?: boolean;
  readonly sort?: Sort;
  /** Rows to choose from; all if absent. */
  readonly rows?: (table: Table) => readonly number[];
  /** Where rows lead that are about many events. */
  readonly eventsOf?: TableOptions["eventsOf"];
  /** Columns that come first. */
  readonly first?: readonly string[];
}

export function tables(context: ViewContext, folds: readonly Fold[]): HTMLElement | null {
  const known = folds.filter(({ name }) => worthAFold(context, name));
  if (known.length === 0) return null;
  return h("section", { class: "folds", "aria-label": "Tables" }, known.map((each) => fold(context, each)));
}

/** Whether an analysis has rows, or may yet have: an empty section is not shown. */
function worthAFold(context: ViewContext, name: string): boolean {
  const analysis = context.payload.analyses.get(name);
  if (!analysis) return false;
  const { rows, state } = analysis.away ?? { rows: context.table(name)?.length ?? 0, state: "ready" };
  return rows > 0 || state !== "ready";
}

function fold(context: ViewContext, about: Fold): HTMLElement {
  const { name } = about;
  const analysis = context.payload.analyses.get(name);
  const rows = analysis?.away?.rows ?? context.table(name)?.length ?? 0;
  const state = analysis?.away?.state ?? "ready";
  const place = h("div", { class: "fold-body" });
  const status = state === "pending" ? "pending" : state === "failed" ? "failed" : counted(rows, "row");
  const details = h("details", { class: "fold", "data-testid": `fold-${name}` },
    h("summary", {}, h("span", { class: "fold-title" }, named(shortTitle(name), 60)), " ", h("small", {}, status)), place);
  let filled = false;
  const fill = (): void => {
    if (filled || !details.open) return;
    filled = true;
    if (state === "pending" || state === "failed") {
      filled = false;
      place.replaceChildren(state === "pending" ? workingState("This analysis is still running …", null) : analysisFailed());
      return;
    }
    if (!analysis?.away || !context.served) {
      place.replaceChildren(...body(context, about));
      return;
    }
    place.replaceChildren(workingState("Loading data …", null));
    context.served.table(name).then(() => place.replaceChildren(...body(context, about)),
      (error: unknown) => place.replaceChildren(errorState(error instanceof Error ? error.message : "The table could not be fetched.", "Reload the page.")));
  };
  details.addEventListener("toggle", fill);
  if (about.open || context.place.params.has(rowParam(name))) {
    details.open = true;
    fill();
  }
  return details;
}

function body(context: ViewContext, about: Fold): Node[] {
  const { name } = about;
  const analysis = context.payload.analyses.get(name);
  const table = context.table(name);
  if (!analysis) return [analysisFailed()];
  const words = h("div", {}, h("p", { class: "fold-says" }, inline(shownName(analysis.title, 200))), analysis.headline && !about.open ? h("p", { class: "caption" }, sentence(analysis.headline)) : null,
    analysisCaption(analysis), truncationNote(name, analysis));
  if (!table) return [words, emptyState("This analysis has no rows.", "The traces contain no data for it. Its description lists what it needs.")];
  const sort = about.sort && table.has(about.sort.column) ? about.sort : undefined;
  return [words, tableView(context, { name, table, caption: analysis.title, ...(about.rows ? { rows: about.rows(table) } : {}), ...(sort ? { sort } : {}), ...(about.eventsOf ? { eventsOf: about.eventsOf } : {}), ...(about.first ? { first: about.first } : {}) })];
}

/** Shown instead of an analysis that failed. */
export function analysisFailed(): HTMLElement {
  return emptyState("This analysis failed on these traces.", "The findings on the Overview page give the reason.");
}

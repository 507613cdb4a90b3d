/** From a row of a table to its events in the timeline, and back to the row. */
import type { Table } from "../data/table.ts";
import { hasTimeline, type ViewContext } from "../views/view.ts";
import { h, named } from "./dom.ts";

/** Analyses whose rows are about events of one name, and the column that holds it. */
const NAMED_BY: Readonly<Record<string, string>> = { kernels: "name", operators: "name", annotations: "name", copies: "name", synchronization: "call" };

/** The parameter that keeps which row a reader left by. */
export function rowParam(analysis: string): string {
  return `${analysis}.row`;
}

/** Whether a column's cells lead to their events. */
export function leadsToEvents(context: Pick<ViewContext, "served">, analysis: string, column: string): boolean {
  return hasTimeline(context) && NAMED_BY[analysis] === column;
}

/** A cell's text as a link to the first of its events: on the row's rank, and in its step. */
export function eventLink(context: ViewContext, analysis: string, table: Table, row: number, text: string): HTMLElement {
  const [rank, step] = [table.number(row, "rank"), table.number(row, "step")];
  const params = { name: text, ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) };
  return h("a", { class: "row-link", href: context.router.href("timeline", params), "data-testid": "row-events", click: () => context.router.note({ [rowParam(analysis)]: String(row) }) }, named(text));
}

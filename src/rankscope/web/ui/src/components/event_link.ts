/** From a row of a table to its events in the timeline, and back to the row. */
import type { Table } from "../data/table.ts";
import { fileEvent } from "../timeline/anchor.ts";
import { hasTimeline, type ViewContext } from "../views/view.ts";
import { h, type Child } from "./dom.ts";

/** Which events a table's rows are about. */
interface Rows {
  /** The column whose cells are the links. */
  readonly column: string;
  /** The columns with the event's start and end, or its duration: rows about one event. */
  readonly time?: { readonly start: string; readonly end?: string; readonly duration?: string };
  /** The events' name, where it is not the cell's text; null for rows about no event. */
  readonly name?: (table: Table, row: number) => string | null;
}

const ROWS: Readonly<Record<string, Rows>> = {
  kernels: { column: "name" }, operators: { column: "name" }, annotations: { column: "name" }, copies: { column: "name" }, synchronization: { column: "call" },
  idle: { column: "detail" },
  modules: { column: "module", name: (table, row) => (table.number(row, "calls") === null || !text(table, row, "module") ? null : `nn.Module: ${text(table, row, "module")}`) }, // else only operators name modules
  collectives: { column: "collective", time: { start: "start_ns", end: "end_ns" } },
  ddp_buckets: { column: "bucket", time: { start: "start_ns", duration: "duration_ns" } },
  data_loading: { column: "longest_ns", time: { start: "longest_start_ns", duration: "longest_ns" } },
};

/** The parameter that keeps which row a reader left by. */
export function rowParam(analysis: string): string {
  return `${analysis}.row`;
}

/** The address of a cell’s events: the row’s event, or the first of its name, on its rank and in its step. Null where it has none. */
export function eventParamsOf(analysis: string, table: Table, row: number, column: string, named?: (row: number) => string | null): Record<string, string | number> | null {
  const about = ROWS[analysis];
  const [rank, step] = [table.number(row, "rank"), table.number(row, "step")];
  const place = { ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) };
  if (named) return column === "name" && named(row) !== null ? { name: named(row)!, ...place } : null;
  if (about?.column !== column) return null;
  if (!about.time) {
    const name = about.name ? about.name(table, row) : text(table, row, column);
    return name === null || name === "" ? null : { name, ...place };
  }
  const start = table.number(row, about.time.start);
  const [end, duration] = [about.time.end, about.time.duration].map((name) => (name === undefined ? null : table.number(row, name)));
  const until = end ?? (start === null || duration == null ? null : start + duration);
  if (rank === null || start === null || until === null) return null;
  return { fev: fileEvent({ rank, window: table.number(row, "window") ?? 0, start, end: until }), ...place };
}

/** A cell's content as a link to its events; as it is where there are none. */
export function eventLink(context: ViewContext, analysis: string, table: Table, row: number, column: string, content: Child, named?: (row: number) => string | null): Child {
  const params = hasTimeline(context) ? eventParamsOf(analysis, table, row, column, named) : null;
  if (!params) return content;
  const link = (more: Record<string, string>, attributes: Record<string, string>, text: Child): HTMLElement =>
    h("a", { ...attributes, href: context.router.href("timeline", { ...params, ...more }), click: () => context.router.note({ [rowParam(analysis)]: String(row) }) }, text);
  return h("span", { class: "row-links" }, link({}, { class: "row-link", "data-testid": "row-events" }, content), " ",
    link({ track: "1" }, { class: "row-track", "data-testid": "row-track", title: "All events with this name as a track of the timeline" }, ["track", h("span", { class: "unseen" }, " of all events with this name")]));
}

function text(table: Table, row: number, column: string): string | null {
  const value = table.cell(row, column);
  return typeof value === "string" ? value : null;
}

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
  kernels: { column: "name" }, operators: { column: "name" }, annotations: { column: "name" }, memory_operators: { column: "name" }, recompute: { column: "name" }, copies: { column: "name" }, synchronization: { column: "call" },
  idle: { column: "detail" },
  modules: { column: "module", name: (table, row) => (table.number(row, "calls") === null || !text(table, row, "module") ? null : `nn.Module: ${text(table, row, "module")}`) }, // else only operators name modules
  slices: { column: "name" }, work: { column: "name" }, module_work: { column: "operator" },
  collectives: { column: "collective", time: { start: "start_ns", end: "end_ns" } },
  fsdp: { column: "module", time: { start: "start_ns", duration: "duration_ns" } },
  ddp_buckets: { column: "bucket", time: { start: "start_ns", duration: "duration_ns" } },
  data_loading: { column: "longest_ns", time: { start: "longest_start_ns", duration: "longest_ns" } },
};

/** The parameter that keeps which bar a reader left by. */
const LEFT_BY = "from";

/** The parameter that keeps which row a reader left by. */
export function rowParam(analysis: string): string {
  return `${analysis}.row`;
}

/** The address of a cell’s events: the row’s event, or the first of its name, on its rank and in its step. Null where it has none. */
export function eventParamsOf(analysis: string, table: Table, row: number, column: string): Record<string, string | number> | null {
  const about = ROWS[analysis];
  const [rank, step] = [table.number(row, "rank"), table.number(row, "step")];
  const place = { ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) };
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

/** A row's events as an address in the timeline, for a bar or a line of a tree; null where there are none. */
export function eventsHref(context: ViewContext, analysis: string, table: Table, row: number): string | null {
  const params = hasTimeline(context) ? eventParamsOf(analysis, table, row, ROWS[analysis]?.column ?? "") : null;
  return params && context.router.href("timeline", params);
}

/** When charts have got their height: what is below them is at its place. */
export function afterLayout(done: () => void): void {
  requestAnimationFrame(() => requestAnimationFrame(done));
}

/** A link to a row's events outside its table: Back returns to it by its key, which is unique on the page. */
export function returningLink(context: ViewContext, href: string, key: string, props: Readonly<Record<string, string>>, ...content: Child[]): HTMLElement {
  const link = h("a", { ...props, href, "data-testid": "bar-events", click: () => context.router.note({ [LEFT_BY]: key }) }, content);
  if (context.place.params.get(LEFT_BY) === key) afterLayout(() => { if (link.isConnected) link.focus(); });
  return link;
}

/** A cell's content as a link to its events; as it is where there are none. */
export function eventLink(context: ViewContext, analysis: string, table: Table, row: number, column: string, content: Child): Child {
  const params = hasTimeline(context) ? eventParamsOf(analysis, table, row, column) : null;
  if (!params) return content;
  const href = (more: Record<string, string>): string => context.router.href("timeline", { ...params, ...more });
  return h("span", { class: "row-links" }, rowLink(context, analysis, row, href({}), content), " ",
    h("a", { class: "row-track", href: href({ track: "1" }), "data-testid": "row-track", title: "All events with this name as a track of the timeline", click: noteRow(context, analysis, row) }, ["track", h("span", { class: "unseen" }, " of all events with this name")]));
}

/** A link by which the reader leaves a row, and to which Back returns. */
export function rowLink(context: ViewContext, analysis: string, row: number, href: string, content: Child): HTMLElement {
  return h("a", { class: "row-link", href, "data-testid": "row-events", click: noteRow(context, analysis, row) }, content);
}

function noteRow(context: ViewContext, analysis: string, row: number): () => void {
  return () => context.router.note({ [rowParam(analysis)]: String(row) });
}

function text(table: Table, row: number, column: string): string | null {
  const value = table.cell(row, column);
  return typeof value === "string" ? value : null;
}

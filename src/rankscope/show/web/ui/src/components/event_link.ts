/** From a row of a table to its events in the timeline, and back to the row. */
import type { Table } from "../data/table.ts";
import { exactly } from "../format/pattern.ts";
import { eventTime } from "../timeline/anchor.ts";
import { hasTimeline, type ViewContext } from "../views/view.ts";
import { h, type Child } from "./dom.ts";
import { leftRows, walkParams, type ShownRows } from "./row_walk.ts";

/** Which events a table's rows are about. */
interface Rows {
  /** The column whose cells are the links. */
  readonly column: string;
  /** The columns with the event's start and end, or its duration: rows about one event. */
  readonly time?: { readonly start: string; readonly end?: string; readonly duration?: string };
  /** The events' name, or an expression between slashes, where it is not the cell's text; null for rows about no event. */
  readonly name?: (table: Table, row: number) => string | null;
  /** A place of the timeline, for rows about ranks or about time without events. */
  readonly place?: (table: Table, row: number) => Readonly<Record<string, string | number>> | null;
}

/** Longer than any operator: of several events that start at an instant the longest is meant. */
const LONG_NS = 1e12;

/** By analysis, the columns with links, the best first. */
const ROWS: Readonly<Record<string, readonly Rows[]>> = {
  kernels: [{ column: "name", time: { start: "longest_start_ns", duration: "longest_ns" } }], operators: [{ column: "name" }], annotations: [{ column: "name" }], memory_by_operator: [{ column: "name" }], recompute: [{ column: "name" }], copies: [{ column: "name" }], synchronization: [{ column: "call" }],
  idle: [{ column: "cause", place: longestGap }, { column: "detail" }],
  modules: [{ column: "module", name: (table, row) => (table.number(row, "calls") === null || !text(table, row, "module") ? null : `nn.Module: ${text(table, row, "module")}`) }], // else only operators name modules
  memory_by_module: [{ column: "module", name: (table, row) => innermost(text(table, row, "module")) }], memory_by_site: [{ column: "call_site" }],
  memory_blocks: [{ column: "operator" }], memory_curve: [{ column: "operator" }],
  slices: [{ column: "name" }], work: [{ column: "name" }], work_by_module: [{ column: "operator" }], compile: [{ column: "name", name: compiled }],
  collectives: [{ column: "collective", time: { start: "start_ns", end: "end_ns" } }],
  fsdp: [{ column: "module", time: { start: "start_ns", duration: "duration_ns" } }],
  ddp_buckets: [{ column: "bucket", time: { start: "start_ns", duration: "duration_ns" } }],
  data_loading: [{ column: "longest_ns", time: { start: "longest_start_ns", duration: "longest_ns" } }],
  critical_path: [{ column: "path", place: (table, row) => { const [rank, step] = [table.number(row, "rank"), table.number(row, "step")]; return step === null ? null : { path: text(table, row, "path") === "rank" ? rank ?? "all" : "all", step, ...(rank === null ? {} : { rank }) }; } }],
  mesh: [{ column: "label", place: (table, row) => grouped(text(table, row, "dimension"), text(table, row, "label")) }],
  pipeline_bubble: [{ column: "stage", place: (table, row) => ({ ...grouped("pp", `pp=${table.number(row, "stage")}`), ...(table.number(row, "step") === null ? {} : { step: table.number(row, "step")! }) }) }],
};

/** The longest gap of a cause; where an operator ran, which may leave several, its call. */
function longestGap(table: Table, row: number): Record<string, string | number> | null {
  const [rank, start, longest] = ["rank", "longest_start_ns", "max_ns"].map((column) => table.number(row, column));
  if (rank == null || start == null || longest == null) return null;
  return table.cell(row, "cause") === "operator" ? { ev: eventTime({ rank, start, end: start + LONG_NS }), rank } : { range: eventTime({ rank, start, end: start + longest }), rank };
}

/** `Model_0/Block_1`: the event is that of the innermost module. */
function innermost(path: string | null): string | null {
  return path === null || path === "" ? null : `nn.Module: ${path.slice(path.lastIndexOf("/") + 1)}`;
}

/** The events of compiled code, whose rows have a part of their names. */
function compiled(table: Table, row: number): string | null {
  const name = text(table, row, "name") ?? "";
  const escaped = exactly(name).slice(1, -1);
  switch (table.cell(row, "kind")) {
    case "graph": return `/^## Call CompiledFxGraph ${escaped}/`;
    case "compiling": return `/^${escaped}( \\(dynamo_timed\\))?$/`;
    case "break": return `/torch_dynamo_resume_in_${escaped.replace(" line ", "_at_")}/`;
    case "step": return "/^ProfilerStep#/";
    default: return name;
  }
}

/** The ranks of a group: of `dp=1` or `dp=1 tp=0` those, and of a whole dimension its groups. */
function grouped(dimension: string | null, label: string | null): Record<string, string> | null {
  if (dimension === null) return null;
  const places = (label ?? "").split(/[\s,]+/).filter((part) => part.includes("=")).map((part) => `\\b${exactly(part.replace(/^host=/, "")).slice(1, -1)}\\b`);
  const lanes = places.length > 1 ? places.map((place) => `(?=.*${place})`).join("") : places[0];
  return { group: dimension, ...(lanes === undefined ? {} : { lanes: `/${lanes}/`, groups: "0-999" }) };
}

/** The parameter that keeps which bar a reader left by. */
const LEFT_BY = "from";

/** The parameter that keeps which row a reader left by. */
export function rowParam(analysis: string): string {
  return `${analysis}.row`;
}

/** The address of a cell’s events: the row’s event or stretch of time, or the first event of its name, on its rank and in its step. Null where it has none. */
export function eventParamsOf(analysis: string, table: Table, row: number, column: string): Record<string, string | number> | null {
  const about = ROWS[analysis]?.find((each) => each.column === column);
  if (!about) return null;
  const [rank, step] = [table.number(row, "rank"), table.number(row, "step")];
  const place = { ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) };
  if (about.place) return about.place(table, row);
  const { time } = about;
  if (!time) {
    const name = about.name ? about.name(table, row) : text(table, row, column);
    return name === null || name === "" ? null : { name, ...place };
  }
  const start = table.number(row, time.start);
  const [end, duration] = [time.end, time.duration].map((name) => (name === undefined ? null : table.number(row, name)));
  const until = end ?? (start === null || duration == null ? null : start + duration);
  if (rank === null || start === null || until === null) return null;
  return { ev: eventTime({ rank, start, end: until }), ...place };
}

/** The column of a row’s best link; null where it has none. */
export function linkColumn(analysis: string, table: Table, row: number): string | null {
  return ROWS[analysis]?.find(({ column }) => table.has(column) && eventParamsOf(analysis, table, row, column) !== null)?.column ?? null;
}

/** A row's events as an address in the timeline, for a bar or a line of a tree; null where there are none. */
export function eventsHref(context: ViewContext, analysis: string, table: Table, row: number): string | null {
  const column = hasTimeline(context) ? linkColumn(analysis, table, row) : null;
  const params = column === null ? null : eventParamsOf(analysis, table, row, column);
  return params && context.router.href("timeline", params);
}

/** Where a row’s rank, and step, can be seen, for rows that are about no event: the cell that has the link, and the address. */
export function placeLink(context: ViewContext, table: Table, row: number): { readonly column: string; readonly href: string } | null {
  const [rank, step] = [table.number(row, "rank"), table.number(row, "step")];
  if (!hasTimeline(context) || rank === null || !context.payload.run.ranks.includes(rank)) return null;
  return { column: step === null ? "rank" : "step", href: context.router.href("timeline", { rank, ...(step === null ? {} : { step }) }) };
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

/** A cell's content as a link to its events, from which the table's rows can be walked; as it is where there are none. */
export function eventLink(context: ViewContext, analysis: string, table: Table, row: number, column: string, content: Child, shown: ShownRows): Child {
  const params = hasTimeline(context) ? eventParamsOf(analysis, table, row, column) : null;
  if (!params) return content;
  const href = (more: Record<string, string>): string => context.router.href("timeline", { ...params, ...walkParams(analysis, row, column, shown), ...more });
  const left = (): void => { context.router.note({ [rowParam(analysis)]: String(row) }); leftRows(analysis, table, shown.rows); };
  const link = h("a", { class: "row-link", href: href({}), "data-testid": "row-events", click: left }, content);
  if (!("name" in params) && !("ev" in params)) return link;
  return h("span", { class: "row-links" }, link, " ",
    h("a", { class: "row-track", href: href({ track: "1" }), "data-testid": "row-track", title: "All events with this name as a track of the timeline", click: left }, ["track", h("span", { class: "unseen" }, " of all events with this name")]));
}

/** A link by which the reader leaves a row, and to which Back returns. */
export function rowLink(context: ViewContext, analysis: string, row: number, href: string, content: Child): HTMLElement {
  return h("a", { class: "row-link", href, "data-testid": "row-events", click: () => context.router.note({ [rowParam(analysis)]: String(row) }) }, content);
}

function text(table: Table, row: number, column: string): string | null {
  const value = table.cell(row, column);
  return typeof value === "string" ? value : null;
}

/** A table of any size: sorted by its heads, filtered by words, only visible rows are drawn; download as CSV and, from a server, as Parquet. */
import type { Cell } from "../data/payload.ts";
import type { Sort, Table } from "../data/table.ts";
import { csvFileName, toCsv } from "../format/csv.ts";
import { counted } from "../format/ranks.ts";
import { shapeText } from "../format/shapes.ts";
import { titleName } from "../format/text.ts";
import { exactCell, formatCell, grouped } from "../format/units.ts";
import { categoryOf } from "../theme/categories.ts";
import { hasTimeline, isLive, type ViewContext } from "../views/view.ts";
import { button } from "./controls.ts";
import { inline } from "./doc_text.ts";
import { h, named, styled } from "./dom.ts";
import { afterLayout, eventLink, linkColumn, placeLink, rowLink, rowParam } from "./event_link.ts";
import { sortOf } from "./row_walk.ts";
import { swatch } from "./swatch.ts";
import { columnOrder, columnWidths, label, largest } from "./table_layout.ts";

export interface TableOptions {
  /** The analysis' name: for test ids, the CSV's name and the link. */
  readonly name: string;
  readonly table: Table;
  /** Rows to choose from (a rank's, say); all if absent. */
  readonly rows?: readonly number[];
  readonly sort?: Sort;
  readonly caption: string;
  /** The unit of a cell, where a column holds several. */
  readonly unitOf?: (row: number, column: string) => string | null;
  /** The address of the events that a cell is about, where the row alone does not tell. */
  readonly eventsOf?: (row: number, column: string) => string | null;
  /** Columns that say the same in each row, as the view shows them. */
  readonly hidden?: ReadonlySet<string>;
  /** Columns that come first, in this order. */
  readonly first?: readonly string[];
}

/** Columns of shapes and launch sizes, written as lists. */
const SHAPES: ReadonlySet<string> = new Set(["input_shapes", "shapes", "grid", "block"]);
/** Longer texts may be cut off by their column: they are in the title too. */
const LONG = 24;
const ROW_HEIGHT = 30;
const OVERSCAN = 12;

export function tableView(context: ViewContext, options: TableOptions): HTMLElement {
  const { name, table } = options;
  const key = (what: string): string => `${name}.${what}`;
  const all = options.rows ?? table.rows();
  let sort = sortOf(context.place.params.get(key("sort")), table) ?? options.sort ?? null;
  let query = context.place.params.get(key("q")) ?? "";
  // The row by which the reader left: Back leads to it again.
  const left = Number(context.place.params.get(rowParam(name)) ?? NaN);
  let rows: number[] = [];

  const body = h("tbody");
  const count = h("span", { class: "count", role: "status", "data-testid": `count-${name}` });
  const empty = h("p", { class: "empty-rows", hidden: true }, "No matching rows.");
  const columns = columnOrder(table, all, options.sort?.column ?? null).filter((column) => !options.hidden?.has(column));
  for (const column of [...(options.first ?? [])].reverse()) if (columns.includes(column)) columns.unshift(...columns.splice(columns.indexOf(column), 1));
  const heads = columns.map((column) => head(column));
  const widths = columnWidths(table, all, columns);
  const grid = styled(h("table", { class: columns[0] === "rank" ? "data pinned" : "data", "data-testid": `table-${name}` },
    h("caption", { class: "unseen" }, options.caption),
    h("colgroup", {}, widths.map((width) => styled(h("col"), { width: `${width}ch` }))),
    h("thead", {}, h("tr", { "aria-rowindex": "1" }, heads)), body), { "min-width": `${widths.reduce((a, b) => a + b, 0)}ch` });
  const box = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${options.caption} (scrolls)`, scroll: () => requestAnimationFrame((at) => { draw(at); more(); }) }, grid);
  const place = h("div", { class: "scroll-place" }, box);
  /** Whether columns are out of sight at the right: the edge shows it. */
  const more = (): void => { place.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2); };

  function head(column: string): HTMLElement {
    const { unit, doc } = table.meta(column);
    const about = [column, doc, unit === "" ? "" : `Unit: ${unit}.`].filter(Boolean).join(" · ");
    return h("th", { scope: "col", class: table.isNumeric(column) ? "number" : null, "data-column": column },
      button({ class: "sort", title: about }, () => {
        const descendingFirst = table.isNumeric(column) && table.meta(column).unit !== "";
        const descending = sort?.column === column ? !sort.descending : descendingFirst;
        sort = { column, descending };
        context.router.note({ [key("sort")]: `${descending ? "-" : ""}${column}` });
        order();
      }, h("span", {}, label(table, column)), h("span", { class: "arrow", "aria-hidden": "true" })));
  }

  function order(): void {
    rows = table.sorted(table.matching(all, query), sort);
    heads.forEach((cell, index) => {
      const mine = sort?.column === columns[index];
      cell.setAttribute("aria-sort", mine ? (sort?.descending ? "descending" : "ascending") : "none");
    });
    grid.setAttribute("aria-rowcount", String(rows.length + 1));
    const by = sort === null ? "" : ` by ${label(table, sort.column)} ${sort.descending ? "▼" : "▲"}`;
    count.textContent = `${rows.length === table.length ? counted(rows.length, "row") : `${grouped(rows.length)} of ${counted(table.length, "row")}`}${by}`;
    empty.hidden = rows.length > 0;
    box.scrollTop = 0;
    draw(true);
  }

  let drawnFrom = -1;
  let drawnTo = -1;
  function draw(always: unknown): void {
    const height = box.clientHeight || 800;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - OVERSCAN);
    const last = Math.min(rows.length, Math.ceil((box.scrollTop + height) / ROW_HEIGHT) + OVERSCAN);
    if (always !== true && first === drawnFrom && last === drawnTo) return;
    drawnFrom = first;
    drawnTo = last;
    const peak = sort && table.isNumeric(sort.column) && table.meta(sort.column).unit !== "" ? largest(table, sort.column, rows) : null;
    // The focus stays on its link while rows come and go.
    const focused = document.activeElement instanceof HTMLElement && body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset["row"] : undefined;
    body.replaceChildren(spacer(first), ...rows.slice(first, last).map((row, index) => line(row, first + index, peak)), spacer(rows.length - last));
    if (focused !== undefined) (linkOf(focused) ?? box).focus({ preventScroll: true });
  }

  function linkOf(row: number | string): HTMLElement | null {
    return body.querySelector<HTMLElement>(`tr[data-row="${row}"] a.row-link`);
  }

  function spacer(missing: number): HTMLElement {
    return styled(h("tr", { class: "spacer", "aria-hidden": "true" }), { height: `${missing * ROW_HEIGHT}px` });
  }

  function line(row: number, place: number, peak: number | null): HTMLElement {
    const seen = linkColumn(name, table, row) === null ? placeLink(context, table, row) : null;
    return h("tr", { "data-row": row, "aria-rowindex": place + 2, "aria-current": row === left ? "true" : null }, columns.map((column) => {
      const value = table.cell(row, column);
      const cell = tableCell(table, column, value, options.unitOf?.(row, column) ?? table.meta(column).unit);
      if (column === columns[0]) cell.setAttribute("role", "rowheader");
      if (value !== null) {
        const content = [...cell.childNodes];
        const href = options.eventsOf?.(row, column) ?? (seen?.column === column ? seen.href : null);
        const link = href === null ? eventLink(context, name, table, row, column, content, { rows, sort, query }) : rowLink(context, name, row, href, content);
        if (link !== content && link instanceof HTMLElement) cell.replaceChildren(link);
      }
      if (peak !== null && peak > 0 && sort?.column === column && typeof value === "number" && value > 0) {
        cell.classList.add("barred");
        styled(cell, { "--share": `${Math.min(100, (100 * value) / peak).toFixed(2)}%` });
      }
      return cell;
    }));
  }

  let waiting = 0;
  const filter = h("input", {
    type: "search", placeholder: "Filter rows …", "aria-label": `Filter the rows of ${options.caption}`, value: query, "data-testid": `filter-${name}`,
    input: () => {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => {
        query = filter.value;
        context.router.note({ [key("q")]: query });
        order();
      }, table.length > 5000 ? 180 : 60);
    },
  });
  const watch = new ResizeObserver(() => { draw(false); more(); });
  watch.observe(box);
  if (!Number.isNaN(left)) afterLayout(() => {
    const place = rows.indexOf(left);
    if (place < 0) return;
    box.scrollTop = Math.max(0, (place - 3) * ROW_HEIGHT);
    draw(true);
    const link = linkOf(left);
    (link ?? box).scrollIntoView({ block: link ? "center" : "nearest" });
    link?.focus({ preventScroll: true });
  });
  context.onLeave(() => watch.disconnect());
  order();
  return h("div", { class: "table-block" },
    h("div", { class: "toolbar" }, filter, count,
      button({ class: "quiet", "data-testid": `csv-${name}`, title: "These rows, in this order." }, () => download(csvFileName(context.payload.run.id ?? "", name), toCsv(table, rows)), "Download CSV"),
      parquetLink(context, name)),
    place, empty, leadsNowhere(context, options, all), columnNotes(table));
}

/** Where no row leads to the timeline: why. */
function leadsNowhere(context: ViewContext, { name, table, eventsOf }: TableOptions, rows: readonly number[]): HTMLElement | null {
  if (!hasTimeline(context) || eventsOf || rows.length === 0 || rows.some((row) => linkColumn(name, table, row) !== null || placeLink(context, table, row) !== null)) return null;
  return h("p", { class: "quiet-line", "data-testid": `no-events-${name}` }, "No row leads to the timeline: none is about a single event, rank or step of this run.");
}

/** All rows of an analysis, from the server; a report has no writer of Parquet. */
function parquetLink(context: ViewContext, name: string): HTMLElement | null {
  if (!isLive(context.served) || !context.payload.analyses.has(name)) return null;
  const { run } = context.served.api;
  const href = `api/parquet/${encodeURIComponent(name)}${run === null ? "" : `?run=${encodeURIComponent(run)}`}`;
  return h("a", { class: "quiet", href, download: "", "data-testid": `parquet-${name}`, title: "All rows, with exact types." }, "Parquet");
}

function tableCell(table: Table, column: string, value: Cell, unit: string): HTMLElement {
  const raw = value === null ? "" : typeof value === "object" ? value.join(" ") : String(value);
  const attributes = { "data-column": column, "data-value": raw.slice(0, 2000) };
  if (value === null) return h("td", { ...attributes, class: table.isNumeric(column) ? "number missing" : "missing", title: "Not recorded in the trace." }, formatCell(null, unit));
  if (typeof value === "string") {
    const mark = column === "category" ? swatch(categoryOf(value)) : null;
    return h("td", { ...attributes, title: SHAPES.has(column) || value.length > LONG ? titleName(value) : null }, mark, named(SHAPES.has(column) ? shapeText(value) : value));
  }
  return h("td", { ...attributes, class: typeof value === "number" ? "number" : null, title: exactCell(value, unit) }, formatCell(value, unit, table.meta(column).instant));
}

/** Keyboards and touch screens cannot reach titles, so the columns' meaning is also below the table. */
function columnNotes(table: Table): HTMLElement {
  return h("details", { class: "notes" }, h("summary", {}, "Column descriptions"),
    h("dl", {}, table.columns.map((column) => {
      const { unit, doc } = table.meta(column);
      return h("div", {}, h("dt", {}, h("code", {}, column), unit === "" ? null : ` (${unit})`), h("dd", {}, inline(doc || "No description.")));
    })));
}

function download(fileName: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  h("a", { href: url, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

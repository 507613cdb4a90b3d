/** SQL over the run: a text box with the tables next to it, the rows as a table and a chart, and links to the timeline. */
import { button, selector } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { emptyState, errorState, workingState } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { ApiError, isAbort } from "../data/api.ts";
import { ask, type Query, type QueryRows, type QuerySchema } from "../data/query.ts";
import type { Source } from "../data/source.ts";
import { Table } from "../data/table.ts";
import { counted } from "../format/ranks.ts";
import { readQuery, readSaved, writeQuery, writeSaved } from "../query/address.ts";
import { rowsChart } from "../query/rows_chart.ts";
import { schemaList } from "../query/schema_list.ts";
import { eventTime } from "../timeline/anchor.ts";
import { hasTimeline, isLive, type View, type ViewContext } from "./view.ts";

const NAME = "query";
const LIMITS = [100, 1_000, 10_000, 100_000];

export const query: View = {
  id: "query",
  title: "Query",
  group: "run",
  question: "Ask with SQL: every event of every rank, and the results of all analyses.",
  shows: [],
  render(context) {
    const { served } = context;
    if (!isLive(served)) return [emptyState("A query needs a server.", "Run `rankscope serve` on the run's directory, or `rankscope query DIR \"SELECT …\"`.")];
    const place = h("div", { class: "query" }, workingState("Reading the tables …", null));
    served.api.json<QuerySchema>("schema").then((schema) => fill(context, served, place, schema), (error: unknown) => place.replaceChildren(failed(error)));
    return [place];
  },
};

/** The last rows, so that Back from the timeline, or news of the run, does not ask again; and the text that was not run yet. */
let last: { readonly key: string; readonly rows: QueryRows; readonly table: Table } | null = null;
let draft: string | null = null;

function fill(context: ViewContext, served: Source, place: HTMLElement, schema: QuerySchema): void {
  const params = context.router.place().params;
  const first = readQuery(params, schema.limits.default_rows);
  let limit = first?.limit ?? schema.limits.default_rows;
  let running: AbortController | null = null;
  const result = h("div", { class: "query-result" });
  const status = h("span", { class: "count", role: "status", "data-testid": "query-status" });
  const text = h("textarea", {
    id: "query-sql", rows: 8, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-label": "SQL", "data-testid": "query-sql", placeholder: "SELECT … (Ctrl+Enter runs it)",
    input: () => { draft = text.value; },
    keydown: (event) => {
      const key = event as KeyboardEvent;
      if (key.key !== "Enter" || !(key.ctrlKey || key.metaKey)) return;
      event.preventDefault();
      begin();
    },
  });
  text.value = draft ?? first?.sql ?? schema.examples[0]?.sql ?? "";
  const keyOf = (asked: Query): string => JSON.stringify([served.api.run, served.generation, asked]);

  function begin(): void {
    const asked = { sql: text.value, limit };
    context.router.push({ ...writeQuery(asked, schema.limits.default_rows), x: "", y: "", chart: "", "query.sort": "", "query.q": "", "query.row": "" });
    draft = null;
    run(asked);
  }

  function run(asked: Query): void {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    stop.hidden = false;
    status.textContent = "Running …";
    result.replaceChildren(workingState("Running the query …", null));
    ask(served.api.run, asked, "json", mine.signal).then(async (response) => {
      const rows = (await response.json()) as QueryRows;
      last = { key: keyOf(asked), rows, table: new Table({ title: "Result of the query", doc: "", headline: null, columns: rows.columns, data: rows.data, truncated: null }) };
      if (running === mine) show(asked);
    }).catch((error: unknown) => {
      if (running !== mine || isAbort(error)) return;
      status.textContent = "";
      result.replaceChildren(failed(error));
    }).finally(() => { if (running === mine) stop.hidden = true; });
  }

  function show(asked: Query): void {
    if (last === null) return;
    const { rows, table } = last;
    const more = rows.truncated ? ` There are more: ${asked.limit < schema.limits.rows ? "raise the limit of rows." : "`rankscope query` on the command line has no limit."}` : "";
    status.textContent = `${counted(rows.rows, "row")} in ${rows.seconds.toFixed(rows.seconds < 10 ? 2 : 0)} s.${more}`;
    const here = { ...context, place: context.router.place() };
    result.replaceChildren(...(rows.rows === 0 ? [emptyState("No rows.", "The query is valid; no row fulfills its conditions.")] : [
      rowsChart(here, table) ?? "", tableView(here, { name: NAME, table, caption: "Result of the query", ...links(here, rows, table) }), files(asked)].filter((part) => part !== "")));
  }

  const files = (asked: Query): HTMLElement => h("p", { class: "quiet-line" }, "Download these rows with exact types: ", (["parquet", "arrow"] as const).map((format, index) => [index > 0 && " · ",
    button({ class: "quiet", "data-testid": `query-${format}` }, () => {
      ask(served.api.run, asked, format, new AbortController().signal).then(async (response) => save(await response.blob(), `rankscope_query.${format}`), (error: unknown) => { result.prepend(failed(error)); });
    }, format === "arrow" ? "Arrow" : "Parquet")]));

  const stop = button({ class: "quiet", "data-testid": "query-stop", hidden: "" }, () => {
    running?.abort();
    running = null;
    stop.hidden = true;
    status.textContent = "Stopped.";
    result.replaceChildren();
  }, "Stop");

  const insert = (name: string): void => {
    text.setRangeText(/^[A-Za-z_]\w*$/.test(name) && name !== "window" ? name : `"${name.replaceAll('"', '""')}"`, text.selectionStart, text.selectionEnd, "end");
    draft = text.value;
    text.focus();
  };
  const choose = (sql: string): void => {
    text.value = sql;
    begin();
  };

  place.replaceChildren(
    h("div", { class: "query-ask" },
      h("div", { class: "query-text" }, text,
        h("div", { class: "controls" },
          button({ class: "quiet query-run", "data-testid": "query-run" }, begin, "Run"), stop,
          selector("query-example", "Example", [{ value: "", label: "choose …" }, ...schema.examples.map(({ name, title }) => ({ value: name, label: title }))], "", (name) => { const found = schema.examples.find((each) => each.name === name); if (found) choose(found.sql); }),
          selector("query-limit", "At most", [...new Set([...LIMITS, limit])].filter((each) => each <= schema.limits.rows).map((each) => ({ value: String(each), label: counted(each, "row") })), String(limit), (value) => { limit = Number(value); })),
        savedQueries(context, () => text.value, choose), h("div", {}, status)),
      schemaList(schema, insert)),
    result);
  context.onLeave(() => running?.abort());
  context.onPlace(({ params: moved }) => {
    const asked = readQuery(moved, schema.limits.default_rows);
    if (!asked) return;
    ({ limit } = asked);
    text.value = asked.sql;
    run(asked);
  });
  if (first && last?.key === keyOf(first)) show(first);
  else if (first) run(first);
}

/** Queries that the link keeps, by name. */
function savedQueries(context: ViewContext, current: () => string, choose: (sql: string) => void): HTMLElement {
  const line = h("div", { class: "query-saved", "data-testid": "query-saved" });
  const name = h("input", { type: "search", maxlength: 80, placeholder: "Name of this query", "aria-label": "Name of this query", "data-testid": "query-save-name" });
  const draw = (): void => {
    const saved = readSaved(context.router.place().params.get("saved"));
    const keep = (next: typeof saved): void => {
      context.router.note({ saved: writeSaved(next) });
      draw();
    };
    line.replaceChildren(name, button({ class: "quiet", "data-testid": "query-save", title: "Keep this query in the page's link, to share it" }, () => {
      const called = name.value.trim() || `Query ${saved.length + 1}`;
      name.value = "";
      keep([...saved.filter((each) => each.name !== called), { name: called, sql: current() }]);
    }, "Save in link"), ...saved.map((each) => h("span", { class: "query-chip" },
      button({ class: "quiet", title: each.sql.slice(0, 500) }, () => choose(each.sql), named(each.name, 40)),
      button({ class: "quiet", "aria-label": `Remove ${each.name}` }, () => keep(saved.filter((other) => other.name !== each.name)), "×"))));
  };
  draw();
  return line;
}

/** Rows that are about an event lead to it. */
function links(context: ViewContext, rows: QueryRows, table: Table): { eventsOf?: (row: number, column: string) => string | null } {
  const { places } = rows;
  if (!hasTimeline(context) || places === null || places.every((each) => each === null)) return {};
  const linked = ["name", "collective", "start_ns"].find((column) => table.has(column));
  return {
    eventsOf: (row, column) => {
      const place = column === linked ? places[row] : null;
      if (!place) return null;
      const [rank, start, end] = place;
      return context.router.href("timeline", { ev: eventTime({ rank, start, end }), rank });
    },
  };
}

function failed(error: unknown): HTMLElement {
  return error instanceof ApiError ? errorState(error.message, error.hint) : errorState("The query failed.", error instanceof Error ? error.message : "Reload the page.");
}

function save(blob: Blob, fileName: string): void {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

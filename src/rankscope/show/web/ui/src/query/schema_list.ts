/** The tables that a query can name, with their columns; a click writes a name into the query. */
import { button } from "../components/controls.ts";
import { inline } from "../components/doc_text.ts";
import { h, named } from "../components/dom.ts";
import type { QuerySchema, QueryTable } from "../data/query.ts";

export function schemaList(schema: QuerySchema, insert: (name: string) => void): HTMLElement {
  const all = schema.tables.map((table) => ({ table, element: entry(table, insert) }));
  const find = h("input", {
    type: "search", placeholder: "Find a table or column …", "aria-label": "Find a table or column", "data-testid": "schema-find",
    input: () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const { table, element } of all) {
        const text = [table.name, table.doc, ...table.columns.map(({ name }) => name)].join(" ").toLowerCase();
        element.hidden = !words.every((word) => text.includes(word));
      }
    },
  });
  const group = (title: string, kind: QueryTable["kind"]): HTMLElement => h("section", { "aria-label": title }, h("h4", {}, title), all.filter(({ table }) => table.kind === kind).map(({ element }) => element));
  return h("div", { class: "query-schema", "data-testid": "schema" },
    h("h3", {}, "Tables ", h("small", {}, `schema version ${schema.version}`)), find,
    h("div", { class: "query-tables", tabindex: "0", role: "region", "aria-label": "Tables (scrolls)" }, group("Events of all ranks", "trace"), group("Results of analyses", "result")));
}

function entry(table: QueryTable, insert: (name: string) => void): HTMLElement {
  const place = h("div", {});
  const details = h("details", { class: "query-table", "data-testid": `schema-${table.name}` },
    h("summary", {}, h("code", {}, table.name), table.empty ? h("small", {}, " no rows") : null), place);
  details.addEventListener("toggle", () => {
    if (!details.open || place.hasChildNodes()) return;
    const name = (text: string): HTMLElement => button({ class: "query-name", title: `Write ${text} into the query` }, () => insert(text), named(text, 80));
    place.append(h("p", { class: "caption" }, inline(table.doc), " ", name(table.name)),
      h("dl", {}, table.columns.map((column) => h("div", {}, h("dt", {}, name(column.name), h("small", {}, ` ${column.type}${column.unit === "" ? "" : `, ${column.unit}`}`)), h("dd", {}, inline(column.doc))))));
  });
  return details;
}

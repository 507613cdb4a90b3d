/** The largest rows of a table with a name each, as bars. */
import type { Table } from "../data/table.ts";
import { counted } from "../format/ranks.ts";
import { grouped } from "../format/units.ts";
import type { Category } from "../theme/categories.ts";
import { barList } from "./bar_list.ts";
import type { ViewContext } from "../views/view.ts";
import { h, named } from "./dom.ts";
import { eventsHref, returningLink } from "./event_link.ts";
import type { RankChoice } from "./rank_choice.ts";

export interface TopNames {
  readonly testId: string;
  /** The analysis that the rows are of. */
  readonly analysis: string;
  readonly name: string;
  readonly column: string;
  /** What the rows are, and what they are sorted by: "kernels by time". */
  readonly title: string;
  readonly category: (row: number) => Category;
}

const TOP = 15;

export function topNames(context: ViewContext, table: Table, choice: Pick<RankChoice, "rows" | "mixed">, spec: TopNames): HTMLElement | null {
  const unit = table.meta(spec.column).unit;
  const rows = table.sorted(choice.rows, { column: spec.column, descending: true }).filter((row) => (table.number(row, spec.column) ?? 0) > 0);
  if (rows.length === 0) return null;
  const bars = rows.slice(0, TOP).map((row) => {
    const calls = table.number(row, "calls");
    const href = eventsHref(context, spec.analysis, table, row);
    const name = named(`${spec.name === "rank" ? "rank " : ""}${String(table.cell(row, spec.name) ?? "unnamed")}`, 110);
    return {
      label: [choice.mixed ? `rank ${String(table.cell(row, "rank"))} · ` : null, href === null ? name : returningLink(context, href, `${spec.testId}.${row}`, { class: "row-link" }, name)],
      value: table.number(row, spec.column) ?? 0, unit, category: spec.category(row),
      ...(calls === null ? {} : { note: counted(calls, "call") }),
    };
  });
  const title = rows.length > TOP ? `${spec.title}: top ${TOP} of ${grouped(rows.length)}` : spec.title;
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, spec.testId));
}

import { selector } from "../components/controls.ts";
import { h, named, styled } from "../components/dom.ts";
import { eventsHref, returningLink } from "../components/event_link.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { categoryClass } from "../components/swatch.ts";
import { tables } from "../components/tables.ts";
import { topNames } from "../components/top_names.ts";
import type { Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { exactCell, formatCell, grouped } from "../format/units.ts";
import { present, type View, type ViewContext } from "./view.ts";

const AMOUNTS = [["device_total_ns", "device time", "compute"], ["host_total_ns", "host time", "host_op"]] as const;
const OPEN_BELOW = 2;
const SHOWN_AT_MOST = 400;

export const modules: View = {
  id: "modules",
  title: "Modules",
  group: "work",
  question: "Which parts of the model cost the most?",
  answers: ["modules"],
  shows: ["modules"],
  wants: ["overview"],
  tables: ["work_by_module", "recompute"],
  render(context) {
    const table = context.table("modules");
    if (!table) {
      return present([emptyState("No modules in these traces.", "Modules come from Python stacks: record with `rankscope.Profiler(with_stack=True)` or `with_modules=True`. This makes recording slower and traces larger."), tables(context, [{ name: "recompute" }])]);
    }
    const known = AMOUNTS.filter(([column]) => table.hasAny(column));
    const [column, words, category] = known.find(([name]) => name === context.place.params.get("show")) ?? known[0] ?? AMOUNTS[1];
    const choice = rankChoice(context, "modules", table);
    const self = column.replace("total", "self");
    return present([
      h("div", {}, h("div", { class: "controls" }, choice.control?.childNodes[0] ?? null,
        known.length > 1 && selector("modules-show", "Show:", known.map(([value, label]) => ({ value, label })), column, (value) => context.router.update({ show: value }))),
      h("div", { class: "pair" },
        choice.mixed ? null : tree(context, table, choice.rows, column, words, category),
        topNames(context, table, choice, { testId: "bars-modules", analysis: "modules", name: "module", column: self, title: `Modules by ${words.replace(" ", " self ")}`, category: () => category }))),
      tables(context, [{ name: "modules", open: true, rows: () => choice.rows }, { name: "work_by_module", sort: { column: "host_self_ns", descending: true } }, { name: "recompute" }]),
    ]);
  },
};

/** The tree as it is nested, each module's bar compared with the largest of all. */
function tree(context: ViewContext, table: Table, rows: readonly number[], column: string, words: string, category: "compute" | "host_op"): HTMLElement {
  const peak = rows.reduce((most, row) => Math.max(most, table.number(row, column) ?? 0), 0);
  const [depths, lines] = [rows.map((row) => table.number(row, "depth") ?? 0), [] as HTMLElement[]];
  const closed = new Set<number>();
  rows.forEach((_, place) => { if ((depths[place] ?? 0) >= OPEN_BELOW && (depths[place + 1] ?? 0) > (depths[place] ?? 0)) closed.add(place); });
  const list = h("ol", { class: "tree", "aria-label": "Module tree", "data-testid": "module-tree" });
  const draw = (): void => {
    lines.length = 0;
    let under = Infinity;
    for (let place = 0; place < rows.length && lines.length < SHOWN_AT_MOST; place++) {
      const depth = depths[place] ?? 0;
      if (depth > under) continue;
      under = closed.has(place) ? depth : Infinity;
      lines.push(line(rows[place] ?? 0, place, depth));
    }
    if (lines.length === SHOWN_AT_MOST) lines.push(h("li", {}, h("small", {}, `More than ${grouped(SHOWN_AT_MOST)} modules are expanded: collapse some, or use the table.`)));
    list.replaceChildren(...lines);
  };
  function line(row: number, place: number, depth: number): HTMLElement {
    const amount = table.number(row, column);
    const parent = (depths[place + 1] ?? 0) > depth;
    const text = String(table.cell(row, "module") ?? "unnamed");
    const [name, href] = [named(text, 70), eventsHref(context, "modules", table, row)];
    const events = href === null ? null : returningLink(context, href, `module-tree.${row}`, { class: "row-link", "aria-label": `Events of ${shownName(text)}` }, "events");
    const head = parent ? h("button", { type: "button", class: "tree-open", "aria-expanded": String(!closed.has(place)), "data-place": place, click: () => {
      if (!closed.delete(place)) closed.add(place);
      draw();
      list.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
    } }, name) : name;
    const fill = styled(h("span", { class: `fill ${categoryClass(category)}` }), { width: `${peak > 0 && amount !== null ? ((100 * amount) / peak).toFixed(2) : 0}%` });
    return styled(h("li", { "data-value": amount ?? "", "data-row": row }, h("span", { class: "bar-label" }, head, events && [" ", h("small", {}, events)]), h("span", { class: "bar-value", title: exactCell(amount, "ns") }, formatCell(amount, "ns")), h("span", { class: "track", "aria-hidden": "true" }, fill)),
      { "--depth": String(Math.min(depth, 12)) });
  }
  draw();
  return h("figure", { class: "figure" }, h("figcaption", {}, `The model, by ${words}`), list);
}

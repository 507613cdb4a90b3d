/** The modules of two runs as one tree: each with its time on both sides and the change, and the operators in it. */
import { h, named } from "../components/dom.ts";
import { returningLink } from "../components/event_link.ts";
import type { Table } from "../data/table.ts";
import { shownName } from "../format/text.ts";
import { exactCell, formatCell, formatRatio, grouped, MISSING } from "../format/units.ts";
import { signBetween, signed } from "../calls/words.ts";
import type { ViewContext } from "./view.ts";

const INSIDE = "/";
const ROWS = 400;
/** Rows without a change are shown if this is in the address. */
const ALL = "unchanged";
const OPEN_LEVELS = 1;
/** A module with this share of the largest change is open at first. */
const OPEN_FROM = 0.5;

interface Node {
  readonly row: number;
  readonly name: string;
  readonly depth: number;
  readonly inside: Node[];
}

/** The address of a row's events on a side. */
type Events = (row: number, side: "a" | "b") => string | null;

export function diffModules(context: ViewContext, table: Table, rows: readonly number[], names: readonly [string, string], events: Events): HTMLElement {
  const roots = treeOf(table, rows);
  const change = (node: Node): number => table.number(node.row, "change") ?? 0;
  const largest = Math.max(0, ...roots.map((node) => Math.abs(change(node))));
  const open = new Set<Node>();
  const openFirst = (node: Node): void => {
    if (node.depth > OPEN_LEVELS || (node.depth > 0 && Math.abs(change(node)) < OPEN_FROM * largest)) return;
    open.add(node);
    node.inside.forEach(openFirst);
  };
  roots.forEach(openFirst);
  const body = h("tbody");
  const more = h("p", { class: "quiet-line", hidden: true });
  const unchanged = (node: Node): boolean => signBetween(table.number(node.row, "b") ?? 0, table.number(node.row, "a") ?? 0) === "same";
  let all = context.place.params.get(ALL) === "1" || rows.every((row) => unchanged({ row, name: "", depth: 0, inside: [] }));
  const hidden = rows.filter((row) => unchanged({ row, name: "", depth: 0, inside: [] })).length;
  const showAll = h("button", { type: "button", class: "quiet", "aria-pressed": String(all), "data-testid": "diff-unchanged", click: () => {
    all = !all;
    showAll.setAttribute("aria-pressed", String(all));
    context.router.note({ [ALL]: all ? "1" : "" });
    draw(null);
  } }, `Show the ${grouped(hidden)} rows that changed by less than 1 %`);
  const draw = (back: Node | null): void => {
    const shown: Node[] = [];
    const visit = (node: Node): void => {
      if (!all && node.depth > 0 && unchanged(node) && !node.inside.some((each) => !unchanged(each))) return;
      shown.push(node);
      if (open.has(node)) node.inside.forEach(visit);
    };
    roots.forEach(visit);
    body.replaceChildren(...shown.slice(0, ROWS).map((node) => line(node, node === back)));
    more.hidden = shown.length <= ROWS;
    more.textContent = `The first ${ROWS} of ${grouped(shown.length)} open rows: collapse some.`;
    body.querySelector<HTMLElement>("[data-back]")?.focus({ preventScroll: true });
  };

  function line(node: Node, back: boolean): HTMLElement {
    const { row, inside, depth, name } = node;
    const isOpen = open.has(node);
    const toggle = inside.length === 0 ? h("span", { class: "calls-twist" })
      : h("button", { type: "button", class: "calls-twist", "aria-expanded": String(isOpen), "aria-label": `${shownName(name, 80)}: what is inside`, "data-back": back, click: () => {
        if (!open.delete(node)) open.add(node);
        draw(node);
      } }, isOpen ? "▾" : "▸");
    const cell = (side: "a" | "b"): HTMLElement => {
      const [value, href] = [table.number(row, side), events(row, side)];
      const text = value === null ? MISSING : formatCell(value, "ns");
      const label = `${shownName(name, 80)} in ${side === "a" ? names[0] : names[1]}: ${text}`;
      return h("td", { "data-value": value ?? "", title: exactCell(value, "ns") }, href === null ? text : returningLink(context, href, `diff-modules.${side}.${row}`, { class: "row-link", "aria-label": label }, text));
    };
    const [a, b, ratio] = [table.number(row, "a") ?? 0, table.number(row, "b") ?? 0, table.number(row, "change_ratio")];
    const verdict = table.cell(row, "verdict");
    const indent = h("span", { class: "calls-name" }, toggle, named(name, 70), table.cell(row, "operator") === null ? null : h("small", { class: "diff-operator" }, " operator"));
    indent.style.setProperty("padding-left", `${Math.min(depth, 40) * 14}px`);
    return h("tr", { "data-row": row, "data-name": name.slice(0, 200), "data-depth": depth }, h("th", { scope: "row" }, indent), cell("a"), cell("b"),
      h("td", { "data-value": b - a, class: `diff-${signBetween(b, a)}`, title: exactCell(b - a, "ns") }, signed(b - a)),
      h("td", {}, table.number(row, "a") === null ? "only in B" : table.number(row, "b") === null ? "only in A" : ratio === null ? MISSING : `${ratio > 0 ? "+" : ""}${formatRatio(ratio)}`),
      h("td", { title: verdict === null ? null : String(verdict) }, table.cell(row, "significant") === true ? "significant" : verdict === null ? MISSING : String(verdict).split(" (")[0]!));
  }

  draw(null);
  return h("figure", { class: "figure" }, h("figcaption", {}, "Modules by change: mean per rank and step, with the operators in each"), hidden > 0 && h("div", { class: "controls" }, showAll),
    h("div", { class: "calls-table diff-tree", tabindex: "0", role: "region", "aria-label": "Module tree (scrolls)" }, h("table", { "data-testid": "diff-modules", "aria-label": "Module tree of both sides" },
      h("thead", {}, h("tr", {}, ["Module", "A", "B", "Change", "Relative", "Significance"].map((head) => h("th", { scope: "col" }, head)))), body)), more,
    h("p", { class: "caption" }, "A is ", named(names[0], 60), ", B is ", named(names[1], 60), ". A module includes those inside it, and the backward of its operators. Times of A and B lead to the events there."));
}

/** Rows by their paths; the largest changes first. A row whose module is not there is a root. */
function treeOf(table: Table, rows: readonly number[]): Node[] {
  const path = (row: number): string => String(table.cell(row, "name") ?? "");
  const around = (row: number): string => {
    const operator = table.cell(row, "operator");
    const full = path(row);
    return operator === null ? full.slice(0, Math.max(0, full.lastIndexOf(INSIDE))) : full.slice(0, Math.max(0, full.length - String(operator).length - 1));
  };
  const sorted = [...rows].sort((x, y) => path(x).length - path(y).length);
  const modules = new Map<string, Node>();
  const roots: Node[] = [];
  for (const row of sorted) {
    const operator = table.cell(row, "operator");
    const parent = modules.get(around(row));
    const node: Node = { row, name: operator === null ? path(row).slice(parent ? around(row).length + 1 : 0) : String(operator), depth: parent ? parent.depth + 1 : 0, inside: [] };
    (parent ? parent.inside : roots).push(node);
    if (operator === null) modules.set(path(row), node);
  }
  const size = (node: Node): number => Math.abs(table.number(node.row, "change") ?? 0);
  const sort = (nodes: Node[]): void => {
    nodes.sort((x, y) => size(y) - size(x) || (x.name < y.name ? -1 : 1));
    nodes.forEach(({ inside }) => sort(inside));
  };
  sort(roots);
  return roots;
}

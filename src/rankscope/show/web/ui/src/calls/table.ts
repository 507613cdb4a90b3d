/** The call tree as a table: rows open and close, with total and self time, calls, and a column for each of a few ranks. */
import { h, named, styled } from "../components/dom.ts";
import { exactCell, formatDuration, formatRatio } from "../format/units.ts";
import type { Node } from "./tree.ts";
import { count, signBetween, signed } from "./words.ts";

const ROWS = 400;
/** Shown open at first: what takes this share of everything. */
const OPEN_FROM = 0.1;
const OPEN_AT_FIRST = 30;
const RANK_COLUMNS = 8;

export interface TableState {
  readonly root: Node;
  readonly focus: Node;
  readonly found: ReadonlySet<Node> | null;
  readonly compared: string | null;
  readonly ranks: readonly number[];
  readonly inverted: boolean;
}

export class CallTable {
  readonly element = h("div", { class: "calls-table", tabindex: "-1" });
  readonly #focus: (node: Node) => void;
  readonly #open = new Set<Node>();
  #state: TableState | null = null;

  constructor(focus: (node: Node) => void) {
    this.#focus = focus;
    this.element.addEventListener("keydown", (event) => this.#key(event));
  }

  show(state: TableState): void {
    if (this.#state?.root !== state.root || this.#state.focus !== state.focus || this.#state.found !== state.found) {
      this.#open.clear();
      this.#openFirst(state);
    }
    this.#state = state;
    this.#draw(null);
  }

  /** The path of most time; with a search, the ways to what was found. */
  #openFirst({ focus, found, root }: TableState): void {
    if (focus.around) this.#open.add(focus);
    for (const node of found ?? []) for (let at = node.around; at?.around; at = at.around) this.#open.add(at);
    const least = OPEN_FROM * (root.own.total + root.other.total);
    let left = OPEN_AT_FIRST;
    const open = (node: Node): void => {
      for (const each of node.inside) {
        if (each.own.total + each.other.total < least || left <= 0) return;
        left -= each.inside.length > 0 ? 1 : 0;
        this.#open.add(each);
        open(each);
      }
    };
    open(focus);
  }

  #draw(back: Node | null): void {
    const state = this.#state!;
    const { focus, compared, root } = state;
    const ranks = compared === null && state.ranks.length > 1 && state.ranks.length <= RANK_COLUMNS ? state.ranks : [];
    const rows: Node[] = [];
    const visit = (node: Node): void => {
      rows.push(node);
      if (this.#open.has(node)) node.inside.forEach(visit);
    };
    if (focus.around) visit(focus);
    else focus.inside.forEach(visit);
    const heads = ["Name", "Total", "Self", "Share of total", "Calls", ...(compared === null ? [] : ["Difference, total", "Difference, self"]), ...ranks.map((rank) => `Rank ${rank}`)];
    this.element.replaceChildren(
      h("table", { role: "treegrid", "aria-label": state.inverted ? "Names and their callers" : "Call tree", "data-testid": "call-tree" },
        h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.slice(0, ROWS).map((node, index) => this.#row(node, state, ranks, root, back === null ? index === 0 : node === back)))),
      ...(rows.length > ROWS ? [h("p", { class: "quiet-line" }, `The first ${ROWS} of ${rows.length} open rows. Close some, or focus on a call.`)] : []),
      ...(rows.length === 0 ? [h("p", { class: "quiet-line" }, "No calls in this range.")] : []));
    if (back) this.element.querySelector<HTMLElement>("tr[tabindex='0']")?.focus({ preventScroll: true });
  }

  #row(node: Node, { focus, found, compared }: TableState, ranks: readonly number[], root: Node, first: boolean): HTMLElement {
    const { own, other } = node;
    const open = this.#open.has(node);
    const level = node.depth - (focus.around ? focus.depth : 0);
    const toggle = node.inside.length === 0 ? h("span", { class: "calls-twist" })
      : h("button", { type: "button", class: "calls-twist", tabindex: "-1", "aria-label": open ? "Collapse" : "Expand", click: () => this.#toggle(node) }, open ? "▾" : "▸");
    const time = (value: number): HTMLElement => h("td", { title: exactCell(value, "ns"), "data-value": value }, value === 0 ? "–" : formatDuration(value, 3));
    const difference = (one: number, less: number): HTMLElement => h("td", { title: exactCell(one - less, "ns"), "data-value": one - less, class: `diff-${signBetween(one, less)}` }, signed(one - less));
    const row = h("tr", { role: "row", tabindex: first ? "0" : "-1", "aria-level": level + 1, "aria-expanded": node.inside.length === 0 ? null : String(open), class: found?.has(node) ? "found" : null, "data-name": node.name.slice(0, 200) },
      h("th", { scope: "row" }, styled(h("span", { class: "calls-name" }, toggle, h("button", { type: "button", class: "link", tabindex: "-1", title: "Focus", click: () => this.#focus(node) }, named(node.name, 64))), { "padding-left": `${Math.min(level, 40) * 14}px` })),
      time(own.total), time(own.self), h("td", {}, root.own.total > 0 ? formatRatio(own.total / root.own.total) : "–"), h("td", { "data-value": own.calls }, count(own.calls)),
      compared === null ? null : [difference(own.total, other.total), difference(own.self, other.self)],
      ranks.map((rank) => time(node.ranks.get(rank) ?? 0)));
    rowNode.set(row, node);
    return row;
  }

  #toggle(node: Node): void {
    if (!this.#open.delete(node)) this.#open.add(node);
    this.#draw(node);
  }

  #key(event: KeyboardEvent): void {
    const row = event.target instanceof HTMLElement ? event.target.closest("tr") : null;
    const node = row ? rowNode.get(row) : undefined;
    if (!row || !node) return;
    const to = (next: Element | null | undefined): void => {
      if (!(next instanceof HTMLTableRowElement)) return;
      row.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    };
    const open = this.#open.has(node);
    if (event.key === "ArrowDown") to(row.nextElementSibling);
    else if (event.key === "ArrowUp") to(row.previousElementSibling);
    else if (event.key === "ArrowRight" && node.inside.length > 0) { if (open) to(row.nextElementSibling); else this.#toggle(node); }
    else if (event.key === "ArrowLeft") {
      if (open) this.#toggle(node);
      else to([...this.element.querySelectorAll("tbody tr")].find((each) => rowNode.get(each) === node.around));
    }
    else if (event.key === "Enter" && event.target === row) this.#focus(node);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

const rowNode = new WeakMap<Element, Node>();

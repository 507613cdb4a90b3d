/** The line above the picture: search, zoom, jumps to a step, a rank, a finding, and what is shown. What does not fit is in a menu. */
import { button, selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { expression, slashed } from "../format/pattern.ts";
import { shownName } from "../format/text.ts";
import type { Finding } from "../data/payload.ts";
import { groupings, UNGROUPED } from "./groups.ts";
import type { Model } from "./model.ts";
import { isOrder, ORDERS, type Order } from "./order.ts";

export interface BarActs {
  search(text: string, direction: "next" | "previous"): void;
  /** The matches as a list. */
  hits(text: string): Promise<HTMLElement>;
  zoom(factor: number): void;
  whole(): void;
  step(step: number): void;
  rank(rank: number): void;
  finding(finding: Finding): void;
  filter(text: string): void;
  openAll(open: boolean): void;
  counters(shown: boolean): void;
  measure(): void;
  path(): void;
  order(order: Order): void;
  /** By a dimension of the mesh or `host`; empty for no groups. */
  group(by: string): void;
  showHidden(): void;
  help(): void;
}

export interface Toolbar {
  readonly element: HTMLElement;
  readonly search: HTMLInputElement;
  readonly filter: HTMLInputElement;
  /** The findings to jump to: more come while the server is at work. */
  findings(all: readonly Finding[]): void;
  /** The search's result, announced to screen readers. */
  found(text: string): void;
}

/** Widths of the line, in pixels, from which it has room for a group. */
const ROOM_FOR_PATH = 1120;
const ROOM_FOR_JUMPS = 1000;
const ROOM_FOR_FILTER = 660;
const ROOM_FOR_ZOOM = 540;
const FILTER_PAUSE_MS = 150;

export function toolbar(model: Model, acts: BarActs): Toolbar {
  const { layout } = model;
  const count = h("span", { class: "count", role: "status", "data-testid": "search-count" });
  const hits = h("div", { class: "tl-menu tl-hits-menu" });
  const listing = h("details", { class: "tl-more tl-found", "data-testid": "hits-menu" }, h("summary", { class: "quiet", title: "List of matches" }, count), hits);
  listing.addEventListener("toggle", () => {
    if (!listing.open) return;
    hits.replaceChildren(h("p", { class: "quiet-line" }, "Searching …"));
    void acts.hits(search.value).then((list) => hits.replaceChildren(list));
  });
  dismissed(listing);
  const none = h("span", { class: "tl-none", role: "status", "data-testid": "filter-count" });
  const search = h("input", {
    type: "search", placeholder: "Find", title: "A part of a name, or a regular expression between slashes: /gemm|attn/", "aria-label": "Find events by name, or by a regular expression between slashes", value: model.query, "data-testid": "search",
    input: () => { count.textContent = ""; }, // it was about another text
    keydown: (event) => {
      const { key, shiftKey } = event as KeyboardEvent;
      if (key === "Enter") acts.search(search.value, shiftKey ? "previous" : "next");
    },
  });
  let waiting = 0;
  const filter = h("input", {
    type: "search", placeholder: "Filter lanes", "aria-label": "Show only matching ranks and lanes", value: model.filter, "data-testid": "lane-filter",
    input: () => {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => acts.filter(filter.value), FILTER_PAUSE_MS);
    },
  });
  const steps = [...new Set(layout.ranks.flatMap((rank) => rank.steps.map(({ step }) => step)))].filter((step): step is number => step !== null).sort((a, b) => a - b);
  const jump = (id: string, label: string, values: readonly { value: string; label: string }[], go: (value: string) => void): HTMLElement | null => {
    if (values.length === 0) return null;
    const field = selector(id, label, [{ value: "", label }, ...values], "", (value) => {
      if (value !== "") go(value);
      const select = field.querySelector("select");
      if (select) select.value = "";
    });
    return field;
  };
  const jumps = h("div", { class: "tl-group" },
    jump("tl-step", "Step", steps.map((step) => ({ value: String(step), label: String(step) })), (value) => acts.step(Number(value))),
    layout.ranks.length > 1 ? jump("tl-rank", "Rank", layout.ranks.map(({ rank }) => ({ value: String(rank), label: String(rank) })), (value) => acts.rank(Number(value))) : null);
  let finding: HTMLElement | null = null;
  const findings = (all: readonly Finding[]): void => {
    const places = all.filter((each) => each.ranks.length > 0 || each.steps.length > 0);
    finding?.remove();
    finding = jump("tl-finding", "Finding", places.map((each, index) => ({ value: String(index), label: shownName(each.title, 70) })), (value) => {
      const chosen = places[Number(value)];
      if (chosen) acts.finding(chosen);
    });
    if (finding) jumps.append(finding);
  };
  const counters = button({ class: "quiet", "aria-pressed": String(model.showCounters), "data-testid": "counters" }, () => acts.counters(!model.showCounters), "Counters");
  const zooms = h("div", { class: "tl-group" },
    button({ class: "quiet", "aria-label": "Zoom out", title: "Key S, or Ctrl + wheel" }, () => acts.zoom(2), "−"),
    button({ class: "quiet", "aria-label": "Zoom in", title: "Key W, or Ctrl + wheel" }, () => acts.zoom(0.5), "+"),
    button({ class: "quiet", title: "Key 0", "data-testid": "whole" }, acts.whole, "Entire run"),
    button({ class: "quiet", title: "The next drag measures, also of a finger; key M measures the selection or the visible range", "data-testid": "measure-drag" }, acts.measure, "Measure"));
  const path = button({ class: "quiet", "aria-pressed": String(model.pathOf !== null), title: "The critical path of the step in view. Key C", "data-testid": "path-toggle" }, acts.path, "Critical path");
  const paths = h("div", { class: "tl-group" }, path);
  model.onDraw(() => path.setAttribute("aria-pressed", String(model.pathOf !== null)));
  const filters = h("div", { class: "tl-group" }, filter, none);
  const unhide = button({ class: "quiet", "data-testid": "show-hidden" }, acts.showHidden, "Show hidden");
  const order = layout.ranks.length > 1 ? selector("tl-order", "Order of ranks", Object.entries(ORDERS).map(([value, label]) => ({ value, label })), model.order, (value) => { if (isOrder(value)) acts.order(value); }) : null;
  const kinds = groupings(layout);
  const groups = kinds.length === 0 ? null : selector("tl-group-by", "Group ranks by", [{ value: "", label: "Nothing" }, ...kinds], model.groupBy, (value) => acts.group(value));
  const menu = h("div", { class: "tl-menu" },
    h("div", { class: "tl-group" },
      button({ class: "quiet", "data-testid": "open-all" }, () => acts.openAll(true), "Expand all"),
      button({ class: "quiet", "data-testid": "fold-all" }, () => acts.openAll(false), "Collapse all"),
      layout.ranks.some((rank) => rank.counters.length > 0) ? counters : null, unhide),
    order, groups, model.groupAtFirst === "" ? null : h("p", { class: "quiet-line" }, `More than ${UNGROUPED} ranks are grouped at first, and the ranks that delay the others pinned. A closed group shows its ranks with the greatest, the median and the least value; a click on its name shows all.`), h("p", { class: "quiet-line" }, "P pins the lane of the selection or the focused name, H hides it. A click in the ruler sets a flag with a note."));
  const view = h("details", { class: "tl-more", "data-testid": "view-menu" }, h("summary", { class: "quiet" }, "View"), menu);
  const keys = button({ class: "quiet", "aria-label": "Keyboard and mouse", title: "Key ?", "data-testid": "help-open" }, acts.help, "?");
  const element = h("div", { class: "tl-bar" },
    h("div", { class: "tl-group tl-find" }, search,
      button({ class: "quiet", "aria-label": "Previous match", title: "Shift+Enter in the field, or key Shift+N" }, () => acts.search(search.value, "previous"), "◂"),
      button({ class: "quiet", "aria-label": "Next match", title: "Enter in the field, or key N", "data-testid": "search-next" }, () => acts.search(search.value, "next"), "▸"), listing),
    zooms, jumps, filters, paths, view, keys);
  dismissed(view);
  const groupsInOrder = [zooms, jumps, filters, paths];
  // One line: what there is least room for goes into the menu, and comes back.
  const fit = new ResizeObserver(() => {
    const width = element.clientWidth;
    for (const [group, from] of [[paths, ROOM_FOR_PATH], [jumps, ROOM_FOR_JUMPS], [filters, ROOM_FOR_FILTER], [zooms, ROOM_FOR_ZOOM]] as const) {
      if (width < from && group.parentElement === element) menu.prepend(group);
      else if (width >= from && group.parentElement === menu) (groupsInOrder.slice(groupsInOrder.indexOf(group) + 1).find((each) => each.parentElement === element) ?? view).before(group);
    }
  });
  fit.observe(element);
  const refolded = (): void => {
    const hidden = model.hidden.ranks.size + model.hidden.tracks.size;
    unhide.disabled = hidden === 0;
    unhide.textContent = hidden === 0 ? "Show hidden" : `Show ${hidden} hidden`;
    const ordered = order?.querySelector("select");
    if (ordered) ordered.value = model.order;
    const grouping = groups?.querySelector("select");
    if (grouping) grouping.value = model.groupBy;
    counters.setAttribute("aria-pressed", String(model.showCounters));
    none.textContent = model.filter.trim() !== "" && model.rows.length === 0 ? (expression(slashed(model.filter) ?? "") ? "No lane matches." : "Not a valid expression.") : "";
    if (document.activeElement !== filter) filter.value = model.filter; // a selection may have opened what it hid
  };
  model.onFold(refolded);
  return { element, search, filter, findings, found: (text) => { count.textContent = text; } };
}

/** A menu closes with Escape, and when the reader turns elsewhere. */
function dismissed(menu: HTMLDetailsElement): void {
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary")?.focus();
  });
  const elsewhere = (event: Event): void => {
    if (!menu.contains(event.target as Node)) menu.open = false;
  };
  menu.addEventListener("toggle", () => {
    if (menu.open) document.addEventListener("pointerdown", elsewhere);
    else document.removeEventListener("pointerdown", elsewhere);
  });
}

/** Above the picture: search, zoom, jumps to a step, a rank, a finding, what is shown, and the keys. */
import { button, selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { shownName } from "../format/text.ts";
import type { Finding } from "../data/payload.ts";
import type { Model } from "./model.ts";

export interface BarActs {
  search(text: string, direction: "next" | "previous"): void;
  zoom(factor: number): void;
  whole(): void;
  step(step: number): void;
  rank(rank: number): void;
  finding(finding: Finding): void;
  filter(text: string): void;
  openAll(open: boolean): void;
  counters(shown: boolean): void;
  measure(): void;
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

const FILTER_PAUSE_MS = 150;

export function toolbar(model: Model, acts: BarActs): Toolbar {
  const { layout } = model;
  const count = h("span", { class: "count", role: "status", "data-testid": "search-count" });
  const none = h("span", { class: "count", role: "status", "data-testid": "filter-count" });
  const search = h("input", {
    type: "search", placeholder: "Find by name", "aria-label": "Find events by name", value: model.query, "data-testid": "search",
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
    const field = selector(id, label, [{ value: "", label: `${label} …` }, ...values], "", (value) => {
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
  const element = h("div", { class: "tl-bar" },
    h("div", { class: "tl-group" }, search,
      button({ class: "quiet", "aria-label": "Previous match", title: "Shift+Enter in the field, or key Shift+N" }, () => acts.search(search.value, "previous"), "◂"),
      button({ class: "quiet", "aria-label": "Next match", title: "Enter in the field, or key N", "data-testid": "search-next" }, () => acts.search(search.value, "next"), "▸"), count),
    h("div", { class: "tl-group" },
      button({ class: "quiet", "aria-label": "Zoom out", title: "Key S, or Ctrl + wheel" }, () => acts.zoom(2), "−"),
      button({ class: "quiet", "aria-label": "Zoom in", title: "Key W, or Ctrl + wheel" }, () => acts.zoom(0.5), "+"),
      button({ class: "quiet", title: "Key 0", "data-testid": "whole" }, acts.whole, "Entire run"),
      button({ class: "quiet", title: "Or Shift + drag; key M measures the visible range", "data-testid": "measure-drag" }, acts.measure, "Measure")),
    jumps,
    h("div", { class: "tl-group" }, filter, none,
      button({ class: "quiet", "data-testid": "open-all" }, () => acts.openAll(true), "Expand all"),
      button({ class: "quiet", "data-testid": "fold-all" }, () => acts.openAll(false), "Collapse all"),
      layout.ranks.some((rank) => rank.counters.length > 0) ? counters : null));
  const refolded = (): void => {
    counters.setAttribute("aria-pressed", String(model.showCounters));
    none.textContent = model.filter.trim() !== "" && model.rows.length === 0 ? "none" : "";
    if (document.activeElement !== filter) filter.value = model.filter; // a selection may have opened what it hid
  };
  model.onFold(refolded);
  return { element, search, filter, findings, found: (text) => { count.textContent = text; } };
}

export const KEYS: readonly (readonly [string, string])[] = [
  ["W S, + −", "zoom in, out"], ["A D, ← →", "pan left, right"], ["↑ ↓, Page", "scroll up, down"], ["Ctrl + wheel, pinch", "zoom at the pointer"], ["Shift + wheel, drag", "pan"],
  ["Shift + drag", "measure"], ["M", "measure the visible range or the selection"], ["E", "select the event in the middle of the view"], [", .", "previous, next event in the lane"], ["J K", "lane below, above"],
  ["F", "zoom to the selection"], ["Enter", "go to the selection panel"], ["/", "find by name"], ["N, Shift + N", "next, previous match"], ["[ ]", "previous, next step"], ["0", "entire run"], ["Escape", "close the selection or measurement"],
];

/** States without numbers: no rows, truncated, failed. Each gives the reason and what to do. */
import type { AnalysisPayload } from "../data/payload.ts";
import { grouped } from "../format/units.ts";
import { inline, docNodes, docParts } from "./doc_text.ts";
import { h, type Child } from "./dom.ts";

export function emptyState(why: string, how: string): HTMLElement {
  return h("div", { class: "state", "data-testid": "empty-state" }, h("p", { class: "state-title" }, inline(why)), h("p", {}, inline(how)));
}

export function errorState(what: string, advice: string): HTMLElement {
  return h("div", { class: "state error", role: "alert", "data-testid": "error-state" },
    h("h1", { class: "state-title" }, what), h("p", {}, inline(advice)));
}

/** Something is on its way: what, and how far it is. */
export function workingState(what: string, state: { readonly done: number; readonly total: number } | null): HTMLElement {
  return h("div", { class: "state working", role: "status", "aria-busy": "true", "data-testid": "working" }, h("p", { class: "state-title" }, what),
    h("progress", state && state.total > 0 ? { value: state.done, max: state.total, "aria-label": what } : { "aria-label": what }));
}

export function truncationNote(name: string, analysis: AnalysisPayload): HTMLElement | null {
  if (!analysis.truncated) return null;
  const { shown, total } = analysis.truncated;
  return h("p", { class: "note", "data-testid": `truncated-${name}` },
    `This report contains ${grouped(shown)} of ${grouped(total)} rows; `, h("code", {}, `rankscope analyze ${name} DIR --format csv`), " exports all of them.");
}

/** An analysis' own words: the first paragraph as caption, the rest (formula, source) folded. */
export function analysisCaption(analysis: AnalysisPayload): Child[] {
  const { lead, rest } = docParts(analysis.doc);
  return [
    lead === "" || lead.replace(/\.$/, "") === analysis.title.replace(/\.$/, "") ? null : h("p", { class: "caption" }, inline(lead)),
    rest.length === 0 ? null : h("details", { class: "notes" }, h("summary", {}, "How it is computed"), docNodes(rest)),
  ];
}

/** What was found, the worst first as the analyses order it: severity in words, numbers, what it would save, what to do. */
import { FIRST as CALLS_AT_FIRST, writeChoice } from "../calls/choice.ts";
import type { Finding } from "../data/payload.ts";
import { formatRanks } from "../format/ranks.ts";
import { eventParams } from "../timeline/anchor.ts";
import { placeOf } from "../timeline/layout.ts";
import { factLabel, shownName } from "../format/text.ts";
import { exactCell, formatCell, formatDuration } from "../format/units.ts";
import { hasTimeline, type ViewContext } from "../views/view.ts";
import { button } from "./controls.ts";
import { inline } from "./doc_text.ts";
import { h, named, styled, type Child } from "./dom.ts";

const WORDS = { error: "Error", warning: "Warning", info: "Note" } as const;
const FIRST = 3;
/** Evidence can be a sentence (why a rank is late): that is shown in full; only names are shortened. */
const SAID = 600;

/** The first three, their evidence folded, and a button for the others. */
export function findingsList(context: ViewContext): HTMLElement {
  const { findings } = context.payload;
  if (findings.length === 0) {
    return h("p", { class: "quiet-box", "data-testid": "findings-none" }, "No findings: every file was read completely, and no analysis reported a problem.");
  }
  const list = h("ol", { class: "findings", "data-testid": "findings" }, findings.slice(0, FIRST).map((finding) => item(context, finding, true, true)));
  if (findings.length <= FIRST) return list;
  const more = button({ class: "quiet" }, () => {
    list.append(...findings.slice(FIRST).map((finding) => item(context, finding, true, true)));
    more.remove();
    (list.children[FIRST] as HTMLElement | undefined)?.focus();
  }, `Show all ${findings.length} findings`);
  return h("div", {}, list, more);
}

/** Some findings, all at once; those of another run lead nowhere `here`. */
export function findingItems(context: ViewContext, findings: readonly Finding[], here = true): HTMLElement {
  return h("ol", { class: "findings" }, findings.map((finding) => item(context, finding, here)));
}

/** The largest saving of a run’s findings: computed once, not once per finding. */
const mostSaved = new WeakMap<readonly Finding[], number>();

function largestSaving(findings: readonly Finding[]): number {
  const most = mostSaved.get(findings) ?? findings.reduce((peak, { saving_ns: saving }) => Math.max(peak, saving ?? 0), 0);
  mostSaved.set(findings, most);
  return most;
}

function item(context: ViewContext, finding: Finding, here = true, brief = false): HTMLElement {
  const most = largestSaving(context.payload.findings);
  const evidence = facts(context, finding, here);
  if (brief) return briefly(context, finding, evidence, most);
  return h("li", { class: `finding ${finding.severity}`, "data-testid": "finding", "data-finding": finding.id, tabindex: "-1" },
    h("div", { class: "finding-head" },
      h("span", { class: `severity ${finding.severity}` }, WORDS[finding.severity]),
      h("h3", {}, named(finding.title, 240)), gain(context, finding)),
    evidence,
    here ? shown(context, finding) : null,
    here ? without(context, finding) : null,
    finding.advice === "" ? null : h("p", { class: "advice" }, inline(shownName(finding.advice, 1200))),
    finding.symptoms.length === 0 ? null : symptoms(context, finding.symptoms, here));
}

/** As low as it can be, so that the first three are in sight at once: what it costs and what to do, links, the rest folded. */
function briefly(context: ViewContext, finding: Finding, evidence: HTMLElement | null, most: number): HTMLElement {
  const gained = gain(context, finding);
  const same = finding.symptoms.length;
  return h("li", { class: `finding ${finding.severity}`, "data-testid": "finding", "data-finding": finding.id, tabindex: "-1" },
    h("div", { class: "finding-head" }, h("span", { class: `severity ${finding.severity}` }, WORDS[finding.severity]), h("h3", {}, named(finding.title, 240))),
    finding.saving_ns !== null && most > 0 ? h("div", { class: "meter", "aria-hidden": "true" }, styled(h("span", { class: "memory" }), { width: `${((100 * finding.saving_ns) / most).toFixed(2)}%` })) : null,
    gained === null && finding.advice === "" ? null : h("p", { class: "advice" }, gained, gained === null || finding.advice === "" ? null : ". ", inline(shownName(finding.advice, 1200))),
    h("div", { class: "finding-more" }, shown(context, finding, true), without(context, finding),
      evidence && h("details", { class: "notes" }, h("summary", {}, "Evidence"), evidence),
      same > 0 && h("details", { class: "notes" }, h("summary", {}, `Same cause (${same})`), symptoms(context, finding.symptoms, true))));
}

/** What the finding would save, or what it costs. */
function gain(context: ViewContext, finding: Finding): HTMLElement | null {
  if (finding.saving_ns === null) return cost(context, finding);
  return h("span", { class: "saving", "data-value": finding.saving_ns, title: `${exactCell(finding.saving_ns, "ns")}, an upper bound` },
    "saves up to ", h("strong", {}, formatDuration(finding.saving_ns)), context.payload.run.steps.length > 0 ? " per step" : " in the recorded window");
}

/** What is lost although nothing is saved by this one alone: another rank is as late. */
function cost(context: ViewContext, finding: Finding): HTMLElement | null {
  if (finding.cost_ns === null) return null;
  return h("span", { class: "saving cost", title: exactCell(finding.cost_ns, "ns") }, "costs up to ", h("strong", {}, formatDuration(finding.cost_ns)), context.payload.run.steps.length > 0 ? " per step" : " in the recorded window");
}

/** Findings with the same cause: one line each, the evidence folded. */
function symptoms(context: ViewContext, found: readonly Finding[], here: boolean): HTMLElement {
  return h("div", { class: "symptoms" }, h("p", { class: "symptoms-title" }, "Same cause, savings not added:"),
    h("ul", {}, found.map((symptom) => h("li", { "data-testid": "symptom", "data-finding": symptom.id },
      h("details", {},
        h("summary", {}, named(symptom.title, 240),
          h("small", {}, " ", symptom.saving_ns === null ? "" : `${formatDuration(symptom.saving_ns)} of the same time, because `, named(symptom.because, 200))),
        facts(context, symptom, here),
        here ? eventOf(context, symptom) : null,
        symptom.advice === "" ? null : h("p", { class: "advice" }, inline(shownName(symptom.advice, 1200))))))));
}

/** Where a finding can be seen; briefly without the ranks that are shown with it. */
function shown(context: ViewContext, finding: Finding, brief = false): HTMLElement | null {
  const { rank, step } = placeOf(finding);
  const calls = finding.ranks.length === 1 ? callsLink(context, rank, step, brief) : null;
  const link = eventOf(context, finding, calls, brief);
  if (link) return link;
  if (!context.served || (rank === null && step === null) || (rank !== null && !context.payload.run.ranks.includes(rank))) return null;
  return h("p", { class: "advice" }, h("a", { href: context.router.href("timeline", { ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) }), "data-testid": "finding-place" },
    "Show in timeline", rank === null ? "" : `: rank ${rank}`, step === null ? "" : `${rank === null ? ":" : ","} step ${step}`), calls);
}

/** What ran in the step of a finding on its one rank, compared with the other ranks. */
function callsLink(context: ViewContext, rank: number | null, step: number | null, brief: boolean): Child {
  const { ranks } = context.payload.run;
  if (!context.served || rank === null || step === null || ranks.length < 2 || !ranks.includes(rank)) return null;
  return [" · ", h("a", { href: context.router.href("timeline", { rank, step, calls: writeChoice({ ...CALLS_AT_FIRST, rank, against: "others" }) }), "data-testid": "finding-calls" },
    brief ? `Compare step ${step}` : `Compare what ran in step ${step}`)];
}

/** The step as it would be without what the finding is about. */
function without(context: ViewContext, { scenarios }: Finding): HTMLElement | null {
  if (scenarios.length === 0 || context.table("whatif") === null) return null;
  return h("p", { class: "advice" }, h("a", { href: context.router.href("whatif", { with: scenarios.join(" ") }), "data-testid": "finding-whatif" }, "The step without it"));
}

/** The event that proves a finding, with the ranks to compare it with. */
function eventOf(context: ViewContext, finding: Finding, more: Child = null, brief = false): HTMLElement | null {
  const event = finding.place?.event;
  if (!hasTimeline(context) || !event || !context.payload.run.ranks.includes(event.rank)) return null;
  return h("p", { class: "advice" }, h("a", { href: context.router.href("timeline", eventParams(event)), "data-testid": "finding-event" },
    brief ? `Show the event on rank ${event.rank}` : `Show the event: rank ${event.rank}${event.peers.length > 0 ? `, with rank${event.peers.length > 1 ? "s" : ""} ${formatRanks(event.peers)}` : ""}`), more);
}

function facts(context: ViewContext, finding: Finding, here: boolean): HTMLElement | null {
  const parts: HTMLElement[] = [];
  const fact = (name: string, value: Node | string, title: string | null = null, raw: string | null = null): void => {
    parts.push(h("div", { "data-evidence": name, "data-value": raw }, h("dt", {}, factLabel(shownName(name, 80))), h("dd", { title }, value)));
  };
  if (finding.ranks.length > 0) {
    const text = formatRanks(finding.ranks);
    const only = finding.ranks.length === 1 ? finding.ranks[0] : undefined;
    const linked = here && only !== undefined && context.payload.run.ranks.includes(only) && context.table("step_time") !== null;
    fact(finding.ranks.length === 1 ? "rank" : "ranks", linked ? h("a", { href: context.router.href("steps", { rank: only }) }, text) : text);
  }
  if (finding.steps.length > 0) fact(finding.steps.length === 1 ? "step" : "steps", formatRanks(finding.steps));
  for (const { name, value, unit } of finding.evidence) {
    fact(name, typeof value === "string" ? named(value, SAID) : formatCell(value, unit), exactCell(value, unit), value === null ? "" : String(value));
  }
  return parts.length === 0 ? null : h("dl", { class: "facts" }, parts);
}

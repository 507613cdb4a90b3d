/** What is selected, in words: the event, where it came from, its collective on the other ranks, its name over steps and ranks. */
import { barList } from "../components/bar_list.ts";
import { button } from "../components/controls.ts";
import { h, named, type Child } from "../components/dom.ts";
import { swatch } from "../components/swatch.ts";
import { inputsText } from "../format/shapes.ts";
import { shownName, visible } from "../format/text.ts";
import { counted } from "../format/ranks.ts";
import { exactCell, formatBytes, formatDuration, formatMoment, grouped } from "../format/units.ts";
import { categoryOf } from "../theme/categories.ts";
import type { EventDetail, EventPlace } from "./detail.ts";
import { laneList } from "./lane_list.ts";
import { laneTitle, type Place } from "./layout.ts";
import type { Model } from "./model.ts";
import { FEW_RANKS } from "./name_tracks.ts";

export interface PanelActs {
  select(place: Place): void;
  zoomTo(): void;
  close(): void;
  find(name: string): void;
  measure(): void;
  /** All events with this name as a track, of all ranks or of those that it is shown for at first; again: no longer. */
  track(all: boolean): void;
  step(): void;
}

const ARGUMENTS = 40;
const MEMBERS = 64;
const LONGEST = 4000;
/** Steps or ranks of one name; where there are more, those that take most. */
const BARS = 64;

export function detailPanel(model: Model, detail: EventDetail, reasons: readonly string[], acts: PanelActs): HTMLElement {
  const duration = detail.end_ns - detail.start_ns;
  const fact = (name: string, value: Child, title: string | null = null): HTMLElement => h("div", {}, h("dt", {}, name), h("dd", { title }, value));
  const place = (label: string, at: EventPlace | null): Child => at && fact(label, link(at, acts));
  return h("section", { class: "tl-panel", "aria-label": "Selected event", "data-testid": "selection", "data-lane": detail.lane, "data-row": detail.row, "data-name": detail.name.slice(0, 200), "data-start": detail.start_ns, "data-end": detail.end_ns },
    h("div", { class: "tl-panel-head" },
      h("h3", {}, named(detail.name, 300)),
      button({ class: "quiet", "aria-label": "Close the selection" }, acts.close, "×")),
    reasons.map((reason) => h("p", { class: "tl-reason", "data-testid": "selection-reason" }, `${shownName(reason, 300)}.`)),
    h("div", { class: "tl-actions" },
      button({ class: "quiet", title: "Key F" }, acts.zoomTo, "Zoom to selection"),
      button({ class: "quiet" }, () => acts.select({ lane: detail.lane, row: detail.row - 1 }), "◂ Previous"),
      button({ class: "quiet" }, () => acts.select({ lane: detail.lane, row: detail.row + 1 }), "Next ▸"),
      button({ class: "quiet" }, acts.measure, "Measure"),
      button({ class: "quiet", title: "All events with this name in a lane at the top. Key T", "data-testid": "as-track" }, () => acts.track(false), "Name as a track")),
    h("dl", { class: "tl-facts" },
      fact("Duration", h("strong", {}, formatDuration(duration)), exactCell(duration, "ns")),
      fact("Start", formatMoment(detail.start_ns), exactCell(detail.start_ns, "ns")),
      fact("Category", [swatch(categoryOf(detail.category)), model.layout.categories.find(({ category }) => category === categoryOf(detail.category))?.title ?? shownName(detail.category, 40)]),
      fact("Lane", named(laneTitle(model.layout, detail.lane), 120)),
      detail.step === null ? null : fact("Step", [String(detail.step), " ", button({ class: "link", "data-testid": "step-calls" }, acts.step, model.layout.ranks.length > 1 ? "Compare with the other ranks" : "What ran in it")])),
    collective(detail, acts),
    h("dl", { class: "tl-facts" }, place("Launched by", detail.launch), place("Operator", detail.operator), place("Forward", detail.forward), place("Backward", detail.backward),
      detail.shapes === null || detail.shapes === "" ? null : fact("Inputs", h("code", {}, named(inputsText(detail.shapes), 400)), detail.shapes.slice(0, LONGEST))),
    kernels(detail, acts),
    h("div", { class: "tl-around" }), statistics(model, detail, acts), stack(detail), args(detail), detail.note === undefined ? null : h("p", { class: "quiet-line", "data-testid": "note" }, detail.note), laneList(model, detail.lane, acts.select));
}

function link(at: EventPlace, acts: PanelActs): HTMLElement {
  return button({ class: "link" }, () => acts.select(at), named(at.name, 90));
}

/** What the event launched, in order of time. */
function kernels({ kernels: about }: EventDetail, acts: PanelActs): HTMLElement | null {
  if (!about) return null;
  const { count, total_ns: total, first } = about;
  return h("details", { class: "notes", open: count <= 12, "data-testid": "kernels", "data-count": count, "data-total": total }, h("summary", {}, `Launched ${counted(count, "device event")}, ${formatDuration(total)} in total`),
    scrolled("Launched device events", h("ol", { class: "tl-stack" }, first.map((each) => h("li", {}, link(each, acts), ` ${formatDuration(each.end_ns - each.start_ns, 3)}`)))),
    count > first.length ? h("p", { class: "quiet-line" }, `and ${grouped(count - first.length)} more.`) : null);
}

function collective(detail: EventDetail, acts: PanelActs): HTMLElement | null {
  const about = detail.collective;
  if (!about) return null;
  const facts = [about.group === null ? null : ["group ", named(about.group, 60)], about.bytes === null ? null : formatBytes(about.bytes), about.sequence === null ? null : `sequence ${about.sequence}`];
  const members = [...about.members].sort((a, b) => a.rank - b.rank);
  const first = Math.min(...members.map((member) => member.start_ns));
  const latest = Math.max(...members.map((member) => member.start_ns));
  return h("section", { "data-testid": "members" }, h("h4", {}, "Same collective on ", members.length === 1 ? "this rank only" : `${members.length} ranks`),
    h("p", { class: "quiet-line" }, named(about.name, 80), facts.map((part) => part && [" · ", part])),
    scrolled("Ranks of the collective", h("table", { class: "tl-members", "aria-label": "Ranks of the collective" },
      h("thead", {}, h("tr", {}, ["Rank", "Arrival", "Duration", "Wait"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, members.slice(0, MEMBERS).map((member) => h("tr", { class: member.start_ns === latest && latest > first ? "last" : null, "aria-current": member.rank === detail.rank ? "true" : null },
        h("th", { scope: "row" }, button({ class: "link", "data-testid": `member-${member.rank}` }, () => acts.select(member), String(member.rank))),
        h("td", { title: exactCell(member.start_ns - first, "ns") }, member.start_ns === first ? "first" : `+${formatDuration(member.start_ns - first, 3)}${member.start_ns === latest ? " (last)" : ""}`),
        h("td", {}, formatDuration(member.end_ns - member.start_ns, 3)),
        h("td", {}, member.wait_ns === null ? "–" : formatDuration(member.wait_ns, 3))))))),
    members.length > MEMBERS ? h("p", { class: "quiet-line" }, `and ${members.length - MEMBERS} more ranks; the table in the Collectives view lists all.`) : null);
}

function statistics({ layout }: Model, detail: EventDetail, acts: PanelActs): HTMLElement | null {
  const about = detail.statistics;
  if (!about) return null;
  const category = categoryOf(detail.category);
  const bar = (label: string, part: { count: number; total_ns: number }): { label: Child; value: number; unit: string; category: typeof category; note: string } =>
    ({ label, value: part.total_ns, unit: "ns", category, note: counted(part.count, "event") });
  const bars = (title: string, list: { count: number; total_ns: number; label: string }[]): Child => {
    if (list.length < 2) return null;
    const shown = list.length <= BARS ? list : [...list].sort((a, b) => b.total_ns - a.total_ns).slice(0, BARS);
    const name = shown === list ? title : `${title}: top ${BARS} of ${grouped(list.length)}`;
    return h("details", { class: "notes", open: list.length <= 16 }, h("summary", {}, name), barList(shown.map((part) => bar(part.label, part)), name, ""));
  };
  return h("section", {}, h("h4", {}, "All events with this name"),
    h("p", { class: "quiet-line" }, `${counted(about.count, "event")} in the run, ${formatDuration(about.total_ns)} in total; mean ${formatDuration(about.mean_ns)}, min ${formatDuration(about.min_ns)}, max ${formatDuration(about.max_ns)}. `,
      button({ class: "link" }, () => acts.find(detail.name), "Find other occurrences")),
    layout.ranks.length > FEW_RANKS ? h("div", { class: "tl-actions" }, button({ class: "quiet", title: "Key Shift+T", "data-testid": "as-track-all" }, () => acts.track(true), `As a track of all ${layout.ranks.length} ranks`)) : null,
    bars("By step", about.steps.map((part) => ({ ...part, label: part.step === null ? "outside steps" : `step ${part.step}` }))),
    bars("By rank", about.ranks.map((part) => ({ ...part, label: `rank ${part.rank}` }))));
}

function stack(detail: EventDetail): HTMLElement | null {
  if (detail.stack.length === 0) return null;
  return h("details", { class: "notes", open: true }, h("summary", {}, `Stack (${detail.stack.length})`),
    scrolled("Stack", h("ol", { class: "tl-stack" }, detail.stack.slice(0, 100).map((line) => h("li", {}, named(line, 240))))));
}

function args(detail: EventDetail): HTMLElement | null {
  const entries = Object.entries(detail.args);
  if (entries.length === 0) return null;
  return h("details", { class: "notes", open: true }, h("summary", {}, `Arguments (${entries.length})`),
    scrolled("Arguments", h("dl", { class: "tl-args" }, entries.slice(0, ARGUMENTS).map(([key, value]) => h("div", {}, h("dt", {}, named(key, 80)), h("dd", {}, named(argument(value), 400)))))));
}

function scrolled(label: string, content: HTMLElement): HTMLElement {
  return h("div", { class: "tl-scrolled", tabindex: "0", role: "region", "aria-label": label }, content);
}

function argument(value: unknown): string {
  const text = typeof value === "string" ? value : typeof value === "object" ? JSON.stringify(value) : String(value);
  return visible(text.slice(0, LONGEST));
}

/** One sentence for screen readers. */
export function spoken(model: Model, detail: EventDetail): string {
  return `${shownName(detail.name, 120)}, ${formatDuration(detail.end_ns - detail.start_ns)}, starts at ${formatMoment(detail.start_ns)}, ${shownName(laneTitle(model.layout, detail.lane), 120)}${detail.step === null ? "" : `, step ${detail.step}`}${detail.collective && detail.collective.members.length > 1 ? `, a collective of ${detail.collective.members.length} ranks` : ""}.`;
}

/** Two runs, or two ranks of this one, side by side: the server's `rankscope diff`, a section at a time. */
import { barList } from "../components/bar_list.ts";
import { button, selector } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { findingItems } from "../components/findings.ts";
import { emptyState, workingState } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { ApiError, ServerApi, type ServerState } from "../data/api.ts";
import type { Finding, RunInfo } from "../data/payload.ts";
import type { Source } from "../data/source.ts";
import { Table } from "../data/table.ts";
import { readAnalysis, readFinding, readRun } from "../data/validate.ts";
import { counted } from "../format/ranks.ts";
import { columnLabel, shownName } from "../format/text.ts";
import { formatCell, formatRatio, MISSING } from "../format/units.ts";
import { eventsOn, MODULE_SECTIONS } from "./diff_events.ts";
import { diffModules } from "./diff_modules.ts";
import { diffTimeline, type DiffSide } from "./diff_timeline.ts";
import { isLive, type View, type ViewContext } from "./view.ts";

interface Answer {
  readonly a: unknown;
  readonly b: unknown;
  readonly table: unknown;
  readonly gained: readonly unknown[];
  readonly lost: readonly unknown[];
}

const AGAIN_MS = 700;
const TOP = 12;
/** Sections whose rows are named as their events. */
const IN_TIMELINE: ReadonlySet<string> = new Set(["kernels", "operators", "collectives"]);
/** Columns that are the same in each row of a section, or that the cells show. */
const HIDDEN: ReadonlySet<string> = new Set(["section", "unit"]);
const FIRST = ["name", "a", "b", "change", "change_ratio", "significant"];
const SECTIONS: Readonly<Record<string, string>> = { modules_device: "Modules, device time", modules_host: "Modules, host time" };
/** Columns whose unit is in their row. */
const IN_UNIT: ReadonlySet<string> = new Set(["a", "b", "change", "a_spread", "b_spread"]);
const ABSENT: readonly [string, string] = ["A comparison needs two runs.", "Serve a directory that holds both (`rankscope serve DIR`), or compare in the terminal: `rankscope diff A B`, and `rankscope diff A --ranks 0,1` for two ranks of one run."];

export const diff: View = {
  id: "diff",
  title: "Diff",
  group: "between",
  question: "What changed between two runs or differs between two ranks, and is it significant?",
  shows: [],
  render(context) {
    const { served } = context;
    const ranks = context.payload.run.ranks;
    if (!isLive(served) || (served.runs.length < 2 && ranks.length < 2)) return [emptyState(...ABSENT)];
    const place = h("div", { class: "diff-place" });
    const query = asked(context, served);
    if (query) compare(context, served, query, place);
    else place.append(emptyState("Choose what to compare with.", "Another run in this directory, or two ranks of this run."));
    return [choosers(context, served), place];
  },
};

type Query = Readonly<Record<"with" | "ranks", string | undefined>>;

/** The comparison in the address; by default the run before or after this one, else the slowest rank and its neighbor. */
function asked(context: ViewContext, served: Source): Query | null {
  const { params } = context.place;
  const others = otherRuns(served);
  const other = params.get("with");
  if (other !== undefined && other !== "ranks" && others.some(({ key }) => key === other)) return { with: other, ranks: undefined };
  if (other !== "ranks" && others.length > 0) return { with: others[0]?.key, ranks: undefined };
  const [a, b] = twoRanks(context);
  return a === undefined || b === undefined ? null : { with: undefined, ranks: `${Math.min(a, b)},${Math.max(a, b)}` };
}

/** Two runs from the older to the younger: what came of a change, whichever of them is looked at. */
function inOrder(served: Source, query: Query): Readonly<Record<string, string | undefined>> {
  const shown = served.api.run ?? served.shown;
  const place = (key: string | undefined): number => served.runs.findIndex((run) => run.key === key);
  return query.with !== undefined && place(query.with) < place(shown) ? { run: query.with, with: shown } : query;
}

function otherRuns(served: Source): typeof served.runs {
  const shown = served.api.run ?? served.shown;
  return served.runs.filter(({ key }) => key !== shown);
}

function twoRanks(context: ViewContext): [number | undefined, number | undefined] {
  const { ranks } = context.payload.run;
  const of = (name: string): number | undefined => ranks.find((rank) => String(rank) === context.place.params.get(name));
  const slowest = context.table("overview")?.number(0, "slowest_rank") ?? null;
  const b = of("b") ?? ranks.find((rank) => rank === slowest) ?? ranks[1];
  return [of("a") ?? ranks.find((rank) => rank !== b), b];
}

function choosers(context: ViewContext, served: Source): HTMLElement {
  const others = otherRuns(served);
  const { ranks } = context.payload.run;
  const query = asked(context, served);
  const withRanks = query?.ranks !== undefined;
  const [a, b] = twoRanks(context);
  const choose = (name: string, label: string, chosen: number | undefined, not: number | undefined): HTMLElement =>
    selector(`diff-${name}`, label, ranks.filter((rank) => rank !== not).map((rank) => ({ value: String(rank), label: String(rank) })), String(chosen ?? ""), (value) => context.router.update({ with: "ranks", [name]: value }));
  return h("div", { class: "controls" },
    selector("diff-with", "Compare this run with", [...others.map(({ key, name, ranks: count }) => ({ value: key, label: `${shownName(name, 50)}${count === null ? "" : ` (${counted(count, "rank")})`}` })),
      ...(ranks.length > 1 ? [{ value: "ranks", label: "itself: two ranks" }] : [])], withRanks ? "ranks" : query?.with ?? "", (value) => context.router.update({ with: value })),
    withRanks && choose("a", "Rank", a, b), withRanks && choose("b", "with rank", b, a));
}

function compare(context: ViewContext, served: Source, query: Query, place: HTMLElement): void {
  let left = false;
  context.onLeave(() => { left = true; });
  const failed = (error: unknown): void => {
    if (!left) place.replaceChildren(emptyState(error instanceof ApiError ? error.message : "The comparison failed.", error instanceof ApiError ? error.hint : "Reload the page."));
  };
  /** Both runs have to be read first; a request for one starts that. */
  const ask = async (): Promise<void> => {
    for (const run of [served.api.run, ...(query.with === undefined ? [] : [query.with])]) {
      for (;;) {
        const state = await served.api.json<ServerState>("state", { run });
        if (left) return;
        if (state.phase === "ready" || state.phase === "failed") break;
        place.replaceChildren(workingState("Still reading one of the runs …", state));
        await new Promise((later) => setTimeout(later, AGAIN_MS));
      }
    }
    place.replaceChildren(workingState("Comparing …", null));
    const asking = inOrder(served, query);
    const answer = await served.api.json<Answer>("diff", asking);
    const of = sidesOf(served, asking);
    // Of collectives the rows name no events: their calls do.
    const calls = context.place.params.get("section") === "collectives" ? await Promise.all(of.map(callsOf)) : [null, null];
    if (!left) place.replaceChildren(...shown(context, answer, query.with === undefined ? null : asking === query ? "a" : "b", of, calls));
  };
  place.replaceChildren(workingState("Comparing …", null));
  ask().catch(failed);
}

/** `here` is which of two runs the page shows: links of the other's findings would lead into this one. */
function shown(context: ViewContext, answer: Answer, here: "a" | "b" | null, of: readonly [Omit<DiffSide, "name">, Omit<DiffSide, "name">], calls: readonly (Table | null)[]): HTMLElement[] {
  const analysis = readAnalysis("diff", answer.table);
  if (typeof analysis === "string") return [emptyState("The comparison cannot be shown.", analysis)];
  const table = new Table(analysis);
  const findings = (raw: readonly unknown[]): Finding[] => raw.map(readFinding).filter((finding): finding is Finding => finding !== null);
  const [gained, lost] = [findings(answer.gained), findings(answer.lost)];
  const [a, b] = [readRun(answer.a), readRun(answer.b)];
  const within = a.path === b.path && a.id === b.id && a.ranks.length === 1 && b.ranks.length === 1;
  // The directory is the same for both: the part that differs comes after it.
  const place = `${context.served?.place ?? ""}: `;
  const name = (run: RunInfo): string => (within ? `rank ${run.ranks[0]}` : run.name === null ? "unnamed" : run.name.startsWith(place) ? run.name.slice(place.length) : run.name);
  const sections = table.distinct("section").map(String);
  const section = sections.find((each) => each === context.place.params.get("section")) ?? sections[0] ?? "";
  const rows = table.where("section", section);
  const timeline = diffTimeline(context, [{ name: name(a), ...of[0] }, { name: name(b), ...of[1] }]);
  const events = (row: number, side: "a" | "b"): string | null => {
    const at = side === "a" ? 0 : 1;
    return eventsOn(context, table, row, side, { ...of[at], calls: calls[at] ?? null });
  };
  return [
    verdict(table, name(a), name(b)),
    timeline.element,
    h("div", { class: "controls" }, selector("diff-section", "Section:", sections.map((value) => ({ value, label: SECTIONS[value] ?? columnLabel(value) })), section, (value) => context.router.update({ section: value }))),
    ...[MODULE_SECTIONS.has(section) ? diffModules(context, table, rows, [name(a), name(b)], events) : greatest(table, rows, context.place.params.get("name") ?? null, timeline.highlight)].filter((part): part is HTMLElement => part !== null),
    tableView(context, { name: "diff", table, rows, unitOf: (row, column) => (IN_UNIT.has(column) ? String(table.cell(row, "unit") ?? "") : null), caption: `Differences: ${SECTIONS[section] ?? section}`, hidden: HIDDEN, first: FIRST,
      eventsOf: (row, column) => (column === "a" || column === "b" ? events(row, column) : null) }),
    ...([["b", gained], ["a", lost]] as const).filter(([, list]) => list.length > 0)
      .map(([of, list]) => h("section", {}, h("h3", {}, "Findings: only in ", named(name(of === "b" ? b : a), 60)), findingItems(context, list, here === null || here === of))),
  ];
}

/** The two sides as the timeline asks for them. */
function sidesOf(served: Source, query: Readonly<Record<string, string | undefined>>): readonly [Omit<DiffSide, "name">, Omit<DiffSide, "name">] {
  const first = query["run"] ?? served.api.run;
  const [a = null, b = null] = (query["ranks"] ?? "").split(",").filter(Boolean).map(Number);
  return query["with"] === undefined ? [{ run: first, rank: a }, { run: first, rank: b }] : [{ run: first, rank: null }, { run: query["with"], rank: null }];
}

/** The calls of a side's collectives; null where the server has none. */
async function callsOf({ run }: Pick<DiffSide, "run">): Promise<Table | null> {
  const found = readAnalysis("collectives", await new ServerApi(run).json<unknown>("table/collectives").catch(() => null));
  return typeof found === "string" ? null : new Table(found);
}

/** The first row of the steps: what became of the step's time. */
function verdict(table: Table, a: string, b: string): HTMLElement {
  const row = table.where("section", "steps")[0];
  const value = (column: string): number | null => (row === undefined ? null : table.number(row, column));
  const [before, after, ratio] = [value("a"), value("b"), value("change_ratio")];
  const unit = row === undefined ? "" : String(table.cell(row, "unit") ?? "");
  const certain = row === undefined ? null : table.cell(row, "verdict");
  return h("p", { class: "answer", "data-testid": "answer-diff" }, "From ", named(a, 60), " to ", named(b, 60), ": ",
    before === null || after === null ? "step time is not known in both." : [row === undefined ? "" : `mean ${columnLabel(String(table.cell(row, "name") ?? "step")).toLowerCase()} `,
      h("strong", { "data-value": before }, formatCell(before, unit)), " → ", h("strong", { "data-value": after }, formatCell(after, unit)),
      ratio === null ? "" : [", ", h("strong", { "data-value": ratio }, `${ratio > 0 ? "+" : ""}${formatRatio(ratio)}`)],
      certain === null ? "." : `: ${certain}.`]);
}

/** What changed most in a section, longer and shorter. */
function greatest(table: Table, rows: readonly number[], chosen: string | null, highlight: (name: string | null) => void): HTMLElement | null {
  const size = (row: number): number => Math.abs(table.number(row, "change") ?? 0);
  const top = [...rows].filter((row) => size(row) > 0).sort((x, y) => size(y) - size(x)).slice(0, TOP);
  if (top.length === 0) return null;
  const marks: HTMLElement[] = [];
  /** Names of events are buttons: they show where these are in both steps. */
  const label = (row: number): HTMLElement => {
    const text = String(table.cell(row, "name") ?? "unnamed");
    if (!IN_TIMELINE.has(String(table.cell(row, "section")))) return named(table.cell(row, "section") === "steps" ? columnLabel(text) : text, 90);
    const mark = button({ class: "link", "aria-pressed": String(text === chosen), title: "Highlight in both steps" }, () => {
      const on = mark.getAttribute("aria-pressed") !== "true";
      for (const each of marks) each.setAttribute("aria-pressed", String(each === mark && on));
      highlight(on ? text : null);
    }, named(text, 90));
    marks.push(mark);
    return mark;
  };
  const bars = top.map((row) => {
    const [change, ratio, unit] = [table.number(row, "change") ?? 0, table.number(row, "change_ratio"), String(table.cell(row, "unit") ?? "")];
    const more = change > 0;
    return {
      label: [label(row), h("small", {}, more ? " · more" : " · less")], value: Math.abs(change), text: `${more ? "+" : "−"}${formatCell(Math.abs(change), unit)}`, unit, category: more ? "waiting" as const : "memory" as const,
      note: `${ratio === null ? MISSING : `${more ? "+" : ""}${formatRatio(ratio)}`}${table.cell(row, "verdict") === null ? "" : `, ${String(table.cell(row, "verdict")).split(" (")[0]}`}`,
    };
  });
  const title = "Largest changes, per rank and step";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-diff"));
}

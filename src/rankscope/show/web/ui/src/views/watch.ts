/** A watched job while it runs: step time by rank, who is late since when, last arrivals, and hangs; kept up to date by the server. */
import { chart, type Chart } from "../charts/chart.ts";
import { linesLegend, linesOption, type LinesSpec } from "../charts/lines.ts";
import { h, named, type Child } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import { formatDuration, formatRatio, MISSING } from "../format/units.ts";
import { isLive, type View, type ViewContext } from "./view.ts";

/** What `api/watch` sends (PROTOCOL.md). */
interface Watched {
  readonly running: boolean;
  readonly restarting: boolean;
  readonly attempts: number;
  readonly world_size: number | null;
  readonly ranks: readonly { readonly rank: number; readonly last_step: number | null; readonly state: string }[];
  readonly step_time: null | {
    readonly steps: number; readonly median_ns: number; readonly most_ns: number;
    readonly change: null | { readonly step: number | null; readonly before_ns: number; readonly after_ns: number; readonly significance: string };
  };
  readonly rank_times: readonly { readonly rank: number; readonly step_ns: number; readonly local_ns: number | null; readonly waiting_ns: number | null }[];
  readonly stragglers: readonly { readonly rank: number; readonly once: boolean; readonly excess_ns: number; readonly since_step: number | null; readonly phase: string | null }[];
  readonly sentences: readonly string[];
  /** Why no rank is named, where the ranks were compared. */
  readonly no_straggler: string | null;
  readonly significance: string;
  readonly unknown: string | null;
  readonly last_arrivals: readonly { readonly group: string; readonly ranks: readonly number[]; readonly rank: number; readonly share: number; readonly late_ns: number; readonly collectives: number }[];
  readonly long_steps: readonly { readonly step: number; readonly ns: number; readonly rank: number | null; readonly excess_ns: number; readonly known: boolean }[];
  readonly notes: readonly string[];
  readonly warnings: readonly string[];
  readonly history: { readonly series: Readonly<Record<string, readonly (readonly [number, number])[]>> };
  readonly hang: null | { readonly hangs: boolean; readonly over: boolean; readonly summary: string; readonly cause: string; readonly culprits: readonly number[]; readonly ranks: readonly { readonly rank: number; readonly cause: string; readonly evidence: string }[] };
}

export const watch: View = {
  id: "watch",
  title: "Watch",
  group: "run",
  question: "How is the job doing now: step time, late ranks, hangs?",
  shows: [],
  render(context) {
    if (!isLive(context.served)) return [emptyState("Only a server shows a job while it runs.", "Run `rankscope serve` on its run directory.")];
    return [live(context)];
  },
};

/** The view's content, replaced whenever the server sends a new state. */
function live(context: ViewContext): HTMLElement {
  let last: Watched | null = null;
  let shown: Chart | null = null;
  const connection = h("p", { class: "caption", role: "status", "data-testid": "watch-connection" }, "Connecting …");
  const above = h("div", { class: "watch-parts" });
  const cut = h("span", { class: "caption" });
  const legend = h("ul", { class: "legend" });
  const picture = h("div", {});
  const below = h("div", { class: "watch-parts" });
  const address = `api/watch/events${context.served?.api.run ? `?run=${encodeURIComponent(context.served.api.run)}` : ""}`;
  const events = new EventSource(address);
  context.onLeave(() => events.close());
  events.onmessage = (event: MessageEvent<string>) => {
    last = JSON.parse(event.data) as Watched;
    connection.textContent = last.running ? `Up to date at ${new Date().toLocaleTimeString()}; new steps appear automatically.` : last.restarting ? "The job restarts after a failure; its next attempt appears automatically." : "The job has ended.";
    above.replaceChildren(cards(last), ...hang(last));
    if (shown) shown.redraw();
    else {
      shown = chart(context, { label: "Duration of the latest steps by rank.", testId: "chart-watch", height: () => 280, option: (width) => linesOption(stepTimes(last), width) });
      picture.replaceChildren(h("figure", { class: "figure" }, h("figcaption", {}, "Step time", cut), legend, shown.element));
    }
    cut.textContent = cutText(last);
    legend.replaceChildren(...legendOf(last));
    const scrolled = [...below.querySelectorAll(".watch-table")].map((each) => each.scrollLeft);
    below.replaceChildren(ranks(last), ...arrivals(last), ...longSteps(last), ...lines("Events", last.notes), ...lines("Limits", last.warnings));
    below.querySelectorAll(".watch-table").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  };
  events.addEventListener("unavailable", (event) => {
    const { what, hint } = JSON.parse((event as MessageEvent<string>).data) as { what: string; hint: string | null };
    above.replaceChildren(emptyState(`${what}.`, hint ?? ""));
    connection.textContent = "";
  });
  events.onerror = () => { connection.textContent = "The server does not respond; trying again."; };
  return h("div", { class: "watch-parts", "data-testid": "watch" }, above, picture, below, connection);
}

function cards(now: Watched): HTMLElement {
  const steps = now.ranks.map(({ last_step }) => last_step ?? -1);
  const states = [...new Set(now.ranks.map(({ state }) => state))].map((state) => `${now.ranks.filter((each) => each.state === state).length} ${state}`);
  const time = now.step_time;
  const change = time?.change?.significance === "significant" ? time.change : null;
  // A rank that stalled in one step is no straggler.
  const late = now.stragglers.filter(({ once }) => !once);
  const lateRanks = [...new Set(late.map(({ rank }) => rank))];
  const words = [...now.sentences, ...(late.length > 0 ? [] : [sentenceCase(now.unknown ?? now.no_straggler ?? "")])];
  return h("div", { class: "cards" },
    card("state", now.running ? "Running" : now.restarting ? "Restarting" : "Ended", steps.length > 0 && Math.max(...steps) >= 0 ? `Step ${Math.max(...steps)}` : "No step yet", [`Ranks: ${states.join(", ")}`, now.world_size !== null && now.world_size > now.ranks.length ? `; ${now.ranks.length} of ${now.world_size} have a log` : "", now.attempts > 1 ? `; attempt ${now.attempts}` : "", "."]),
    card("step-time", "Step time", time ? formatDuration(time.median_ns) : MISSING, time
      ? [`Median of the latest ${counted(time.steps, "step")} on the slowest rank, at most ${formatDuration(time.most_ns)}.`, change && ` Since step ${String(change.step)} ${formatDuration(change.after_ns)} instead of ${formatDuration(change.before_ns)}.`]
      : ["No step that all ranks have is in the logs yet."], time?.median_ns),
    card("straggler", lateRanks.length > 1 ? "Stragglers" : "Straggler", late.length > 0 ? `${lateRanks.length === 1 ? "Rank" : "Ranks"} ${formatRanks(lateRanks, 24)}` : now.significance === "not significant" && now.unknown === null ? "None" : "Unknown",
      words.filter(Boolean).map((text) => `${text}. `), late[0]?.rank),
    card("hang", "Hang", now.hang === null ? "None" : now.hang.hangs ? "Hanging" : now.hang.over ? "Over" : "Ended",
      [now.hang === null ? "No rank has reported that it makes no step." : now.hang.hangs ? "The verdict is below." : now.hang.over ? "There was a hang; the ranks have made steps since." : "The ranks have ended; how it came to that is below."]));
}

function card(id: string, title: string, value: string, sentence: Child[], exact?: number): HTMLElement {
  return h("section", { class: "card", "aria-labelledby": `watch-${id}` }, h("h3", { id: `watch-${id}` }, title),
    h("p", { class: "figure-value words", "data-testid": `watch-${id}-value`, "data-value": exact ?? "" }, value), h("p", { class: "sentence" }, sentence));
}

function sentenceCase(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function hang(now: Watched): HTMLElement[] {
  if (now.hang === null) return [];
  const { hangs, summary, ranks: of } = now.hang;
  return [h("div", { class: hangs ? "state error" : "state", role: hangs ? "alert" : null, "data-testid": "watch-hang" },
    h("p", { class: "state-title" }, named(summary, 500)),
    h("ul", {}, of.map(({ rank, cause, evidence }) => h("li", {}, `Rank ${rank} `, named(evidence === "" ? `is in an unknown place` : evidence, 300), ` (${cause.replaceAll("_", " ")})`))),
    h("p", {}, h("code", {}, "rankscope hang RUN"), " has the stacks."))];
}

function ranks(now: Watched): HTMLElement {
  const times = new Map(now.rank_times.map((each) => [each.rank, each]));
  // The largest first: a rank that is always late may have stalled once, too.
  const late = new Map([...now.stragglers].reverse().map((each) => [each.rank, each]));
  const most = 64;
  // Of many ranks, those that something is to be said of come first.
  const rows = [...now.ranks].sort((a, b) => Number(late.has(b.rank)) - Number(late.has(a.rank)) || Number(a.state === "running") - Number(b.state === "running") || a.rank - b.rank).slice(0, most);
  return section("Ranks", ["Rank", "State", "Last step", "Step time", "Busy by itself", "Waits", "Late"], rows.map(({ rank, state, last_step }) => {
    const [time, behind] = [times.get(rank), late.get(rank)];
    return [String(rank), state, last_step === null ? MISSING : String(last_step), duration(time?.step_ns), duration(time?.local_ns), duration(time?.waiting_ns),
      behind ? `${behind.once ? "stalled" : `${formatDuration(behind.excess_ns)} per step`}${behind.since_step === null ? "" : ` ${behind.once ? "in" : "since"} step ${behind.since_step}`}${behind.phase === null ? "" : `, ${behind.phase}`}` : ""];
  }), now.ranks.length > most ? `${most} of ${now.ranks.length} ranks.` : null);
}

function arrivals(now: Watched): HTMLElement[] {
  if (now.last_arrivals.length === 0) return [];
  const rows = [...now.last_arrivals].sort((a, b) => b.late_ns * b.share - a.late_ns * a.share).slice(0, 16);
  return [section("Last to arrive", ["Group", "Ranks", "Last", "Share", "After the first", "Collectives"],
    rows.map((each) => [named(each.group, 24), formatRanks(each.ranks, 24), `rank ${each.rank}`, formatRatio(each.share), formatDuration(each.late_ns), String(each.collectives)]))];
}

function longSteps(now: Watched): HTMLElement[] {
  if (now.long_steps.length === 0) return [];
  return [section("Longest steps", ["Step", "Duration", "Rank", "Longer than the others"],
    now.long_steps.map(({ step, ns, rank, excess_ns, known }) => [String(step), formatDuration(ns), rank === null ? (known ? "none alone" : "not known") : `rank ${rank}`, rank === null ? "" : formatDuration(excess_ns)]))];
}

function section(title: string, heads: readonly string[], rows: readonly (readonly Child[])[], note: string | null = null): HTMLElement {
  const id = `watch-table-${title.toLowerCase().replaceAll(" ", "-")}`;
  return h("section", { "aria-labelledby": id }, h("h3", { id }, title), note && h("p", { class: "note" }, note),
    h("div", { class: "watch-table", tabindex: "0", role: "region", "aria-labelledby": id },
      h("table", { class: "data", "data-testid": id }, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))))));
}

function lines(title: string, texts: readonly string[]): HTMLElement[] {
  return texts.length === 0 ? [] : [h("section", {}, h("h3", {}, title), h("ul", {}, texts.map((text) => h("li", {}, named(text, 300)))))];
}

function duration(ns: number | null | undefined): string {
  return ns === null || ns === undefined ? MISSING : formatDuration(ns);
}

/** Which line is whose: the late ranks' stand out. */
function legendOf(now: Watched): HTMLElement[] {
  const names = Object.keys(now.history.series);
  const bold = names.filter((name) => isBold(now, name));
  if (names.length < 2) return [];
  if (bold.length === 0) return linesLegend(null, `${counted(names.length, "rank")}, a line each`);
  return linesLegend(bold.join(", "), bold.length + 1 === names.length ? names.find((name) => !bold.includes(name)) ?? "" : "other ranks");
}

/** Where the vertical axis ends, if a few steps would make all others look alike: a hang, the first step. */
export function cutOff(series: Watched["history"]["series"]): number | null {
  const all = Object.values(series).flatMap((points) => points.map(([, ns]) => ns)).sort((a, b) => a - b);
  const usual = all[Math.floor(0.98 * (all.length - 1))] ?? 0;
  return all.length > 20 && (all.at(-1) ?? 0) > 5 * usual ? 2 * usual : null;
}

function cutText(now: Watched): string {
  const limit = cutOff(now.history.series);
  if (limit === null) return "";
  const steps = new Set(Object.values(now.history.series).flatMap((points) => points.filter(([, ns]) => ns > limit).map(([step]) => step)));
  return ` · ${counted(steps.size, "step")} above ${formatDuration(limit, 2)} not to scale`;
}

function isBold(now: Watched, name: string): boolean {
  return name === "slowest rank" || now.stragglers.some(({ rank }) => name === `rank ${rank}`);
}

/** The latest steps of each rank. */
function stepTimes(now: Watched | null): LinesSpec {
  const series = Object.entries(now?.history.series ?? {});
  return {
    lines: series.map(([name, points]) => ({ name, marked: now !== null && isBold(now, name), points })), stepped: false, describe: (step, ns) => `${formatDuration(ns)} in step ${step}`,
    along: { name: "Step", more: { min: "dataMin", max: "dataMax", minInterval: 1 } }, amounts: { format: formatDuration, more: { min: 0, max: now === null ? null : cutOff(now.history.series) } },
  };
}

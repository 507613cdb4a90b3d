/** What memory is for: by category at the peak and over time, by module and by call site; and a range of that time. */
import { areaChart } from "../charts/areas.ts";
import type { RangeSpec } from "../charts/range_select.ts";
import { stackedChart } from "../charts/stacked.ts";
import { barList } from "../components/bar_list.ts";
import { button } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { eventsHref, returningLink } from "../components/event_link.ts";
import { swatch } from "../components/swatch.ts";
import type { Table } from "../data/table.ts";
import { counted } from "../format/ranks.ts";
import { formatBytes, formatDuration, grouped } from "../format/units.ts";
import type { Category } from "../theme/categories.ts";
import { hasTimeline, leadTo, present, type ViewContext } from "./view.ts";

/** The categories of `memory_by_category` in the order in which they are stacked, what lasts longest first. */
const PARTS: readonly (readonly [string, Category, string])[] = [
  ["parameters", "host_op", "Parameters"], ["optimizer_state", "optimizer", "Optimizer state"], ["gradients", "backward", "Gradients"], ["activations", "forward", "Activations"],
  ["inputs", "data_loading", "Inputs"], ["temporary", "runtime", "Temporary"], ["earlier", "other", "Unknown: before the recording"], ["unknown", "idle", "Unknown"],
];
const RANGE = "range";
const TOP = 12;
const STACK_FRAMES = 3;
const FILE_PARTS = 3;

/** What is shown: one file of one rank, one of its devices. */
export interface Shown {
  readonly rank: number;
  readonly window: number;
  readonly device: string;
}

/** The range in the address, ns since the start of the trace. */
export function chosenRange(context: ViewContext): RangeSpec | null {
  const found = /^(\d{1,16})_(\d{1,16})$/.exec(context.place.params.get(RANGE) ?? "");
  return found && Number(found[2]) > Number(found[1]) ? { from: Number(found[1]), to: Number(found[2]) } : null;
}

/** By rank, what was live at the peak. */
export function atPeak(context: ViewContext, table: Table, rows: readonly number[]): HTMLElement | null {
  const order = table.sorted(rows, { column: "rank", descending: false });
  const key = (row: number): string => [table.cell(row, "rank"), table.cell(row, "window"), table.cell(row, "device")].join("|");
  const bars = [...new Map(order.map((row) => [key(row), row])).values()];
  const amounts = new Map(rows.map((row) => [`${key(row)}|${String(table.cell(row, "category"))}`, table.number(row, "peak_bytes")]));
  if (bars.length === 0) return null;
  const several = bars.length > new Set(bars.map((row) => table.cell(row, "rank"))).size;
  return stackedChart(context, {
    label: "Memory at the peak of each rank by category.", title: "At the peak, by category", testId: "chart-memory-categories", axis: "Rank", format: formatBytes,
    bars: bars.map((row) => `${String(table.cell(row, "rank"))}${several ? ` (${String(table.cell(row, "device"))}, window ${String(table.cell(row, "window"))})` : ""}`),
    segments: PARTS.map(([name, category, label]) => ({ category, label, values: bars.map((row) => amounts.get(`${key(row)}|${name}`) ?? null) })),
    onPick: (index) => { location.hash = leadTo(context, table.number(bars[index] ?? 0, "rank")) ?? location.hash; },
  });
}

/** One rank's memory over time by category, with the range that was chosen on it. */
export function overTime(context: ViewContext, table: Table, shown: Shown): HTMLElement | null {
  const rows = table.where("rank", shown.rank).filter((row) => table.cell(row, "device") === shown.device && table.number(row, "window") === shown.window);
  if (rows.length < 2) return null;
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  const times = pick("time_ns").map((time) => time ?? 0);
  const areas = PARTS.map(([name, category, label]) => ({ category, label, values: pick(name) })).filter(({ values }) => values.some((value) => value !== null && value > 0));
  const range = chosenRange(context);
  const choose = (next: RangeSpec): void => context.router.update({ [RANGE]: `${next.from}_${next.to}`, rank: String(shown.rank) });
  return h("div", {}, areaChart(context, {
    label: "Allocated memory of one rank over time, by category. The numbers are in the table Memory composition; the fields below choose a range.",
    title: `Rank ${shown.rank}, ${shown.device}: allocated over time, by category`, testId: "chart-memory-composition", times, areas, totals: pick("total"), range, onRange: choose,
  }), rangeControls(context, shown, times, range, choose));
}

/** The range by keyboard, and where it leads. */
function rangeControls(context: ViewContext, shown: Shown, times: readonly number[], range: RangeSpec | null, choose: (range: RangeSpec) => void): HTMLElement {
  const [first, last] = [times[0] ?? 0, times.at(-1) ?? 0];
  const current = range ?? { from: first, to: last };
  const field = (name: string, value: number): HTMLInputElement => h("input", { type: "number", step: "any", class: "range-field", "aria-label": `${name} of the range in milliseconds since the start of the trace`, "data-testid": `memory-range-${name.toLowerCase()}`, value: value / 1e6 });
  const [from, to] = [field("Start", current.from), field("End", current.to)];
  const apply = (): void => {
    const [a, b] = [Math.round(Number(from.value) * 1e6), Math.round(Number(to.value) * 1e6)];
    if (Number.isFinite(a) && Number.isFinite(b) && b > a && a >= 0) choose({ from: a, to: b });
  };
  for (const input of [from, to]) input.addEventListener("keydown", (event) => { if (event.key === "Enter") apply(); });
  const words = h("span", { class: "muted", role: "status", "data-testid": "memory-range" }, range === null ? "Drag over the picture to choose a range." : `Range: ${formatDuration(range.from)} to ${formatDuration(range.to)}. The tables below show its events only.`);
  return h("div", { class: "controls range-controls" }, h("span", {}, from, " to ", to, " ms "), button({ class: "quiet", "data-testid": "memory-range-apply" }, apply, "Choose range"),
    range !== null && hasTimeline(context) && button({ class: "quiet", "data-testid": "memory-range-timeline" }, () => toTimeline(context, shown, range), "Show in the timeline"),
    range !== null && button({ class: "quiet", "data-testid": "memory-range-clear" }, () => context.router.update({ [RANGE]: "" }), "Clear range"), words);
}

function toTimeline(context: ViewContext, shown: Shown, range: RangeSpec): void {
  const span = `${range.from}_${range.to}`;
  location.hash = context.router.href("timeline", { t: span, m: span, open: String(shown.rank), pin: String(shown.rank) });
}

/** The rows of a table of events that are in the range. */
export function inRange(context: ViewContext, shown: Shown | null, column: string): ((table: Table) => readonly number[]) | null {
  const range = chosenRange(context);
  if (range === null || shown === null) return null;
  return (table) => table.where("rank", shown.rank).filter((row) => {
    const time = table.number(row, column);
    return table.cell(row, "device") === shown.device && table.number(row, "window") === shown.window && time !== null && time >= range.from && time <= range.to;
  });
}

/** The places in the program that hold the most at the peak. */
export function byPlace(context: ViewContext, table: Table, shown: Shown, column: "module" | "call_site"): HTMLElement | null {
  const rows = table.sorted(table.where("rank", shown.rank).filter((row) => table.cell(row, "device") === shown.device && (table.number(row, "peak_bytes") ?? 0) > 0), { column: "peak_bytes", descending: true });
  if (rows.length === 0) return null;
  const parts = PARTS.filter(([name]) => table.has(name));
  const analysis = column === "module" ? "memory_by_module" : "memory_by_site";
  const place = (row: number): HTMLElement | string => {
    if (table.cell(row, column) === null) return column === "module" ? "outside modules" : "no Python frame";
    const [name, href] = [named(String(table.cell(row, column)), 110), eventsHref(context, analysis, table, row)];
    return href === null ? name : returningLink(context, href, `bars-${analysis}.${row}`, { class: "row-link" }, name);
  };
  const bars = rows.slice(0, TOP).map((row) => ({
    label: place(row),
    value: table.number(row, "peak_bytes") ?? 0, unit: "bytes", category: "idle" as const,
    pieces: parts.map(([name, category]) => ({ value: table.number(row, name) ?? 0, category })).filter(({ value }) => value > 0),
    note: counted(table.number(row, "allocations") ?? 0, "allocation"),
  }));
  const title = `${column === "module" ? "By module" : "By call site"}, at the peak${rows.length > TOP ? `: top ${TOP} of ${grouped(rows.length)}` : ""}`;
  const used = parts.filter(([name]) => rows.slice(0, TOP).some((row) => (table.number(row, name) ?? 0) > 0));
  return h("figure", { class: "figure" }, h("figcaption", {}, title), h("ul", { class: "legend" }, used.map(([, category, label]) => h("li", { class: "legend-item" }, swatch(category), label))),
    barList(bars, title, `bars-memory-${column.replace("_", "-")}`));
}

/** What each stack of a snapshot holds: its innermost frames, with the files they are in. */
export function byStack(table: Table): HTMLElement | null {
  const column = table.values("peak_bytes").some((value) => value !== null) ? "peak_bytes" : "bytes";
  const rows = table.sorted(table.rows(), { column, descending: true }).filter((row) => (table.number(row, column) ?? 0) > 0);
  if (rows.length === 0) return null;
  const several = table.distinct("rank").length > 1;
  const bars = rows.slice(0, TOP).map((row) => {
    const stack = table.cell(row, "stack");
    const frames = typeof stack === "string" ? stack.split("\n").slice(0, STACK_FRAMES).map(shortFrame) : [];
    return {
      label: [several ? `rank ${String(table.cell(row, "rank"))} · ` : null, frames.length === 0 ? "no stack recorded" : named(frames[0] ?? "", 90), frames.slice(1).map((frame) => h("small", {}, " ← ", named(frame, 70)))],
      value: table.number(row, column) ?? 0, unit: "bytes", category: "memory" as const,
      note: counted(table.number(row, column === "bytes" ? "blocks" : "peak_blocks") ?? 0, "block"),
    };
  });
  const title = `By call stack, ${column === "bytes" ? "at the snapshot" : "at the peak"}${rows.length > TOP ? `: top ${TOP} of ${grouped(rows.length)}` : ""}`;
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-memory-stacks"));
}

/** `/usr/…/vllm/worker/cache_engine.py:83 allocate` as `allocate, vllm/worker/cache_engine.py:83`. */
export function shortFrame(frame: string): string {
  const found = /^(.*?):(\d+) (.+)$/.exec(frame);
  if (!found) return frame;
  const [, path = "", line, name] = found;
  return `${name}, ${path.split("/").slice(-FILE_PARTS).join("/")}:${line}`;
}

/** One rank of one device: what is beside the comparison of the ranks. */
export function ofRank(context: ViewContext, shown: Shown): HTMLElement | null {
  const [composition, modules, sites] = ["memory_curve_by_category", "memory_by_module", "memory_by_site"].map((name) => context.table(name));
  const parts = present([composition && overTime(context, composition, shown),
    (modules || sites) && h("div", { class: "pair" }, modules && byPlace(context, modules, shown, "module"), sites && byPlace(context, sites, shown, "call_site"))]);
  return parts.length === 0 ? null : h("div", { class: "stack" }, parts);
}

import { chart } from "../charts/chart.ts";
import { linesLegend, linesOption, type LinesSpec } from "../charts/lines.ts";
import { ticks } from "../charts/option.ts";
import { stackedChart } from "../charts/stacked.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { tables } from "../components/tables.ts";
import { topNames } from "../components/top_names.ts";
import type { Table } from "../data/table.ts";
import { formatBytes, formatDuration } from "../format/units.ts";
import { atPeak, byStack, inRange, ofRank, type Shown } from "./memory_parts.ts";
import { leadTo, present, type View, type ViewContext } from "./view.ts";

const FOLDS = ["memory_by_category", "memory_by_module", "memory_by_site", "memory_by_step", "memory_by_operator", "memory_curve_by_category", "memory_curve_by_interval", "memory_curve", "memory_blocks", "memory_snapshot_by_stack"] as const;
/** Tables whose rows are at an instant, which a range filters, and the column that has it. */
const INSTANTS: Readonly<Record<string, string>> = { memory_curve_by_category: "time_ns", memory_curve: "time_ns", memory_blocks: "allocated_ns" };

export const memory: View = {
  id: "memory",
  title: "Memory",
  group: "work",
  question: "How much memory does each rank use, when, what for, and does it grow?",
  answers: ["memory", "memory_snapshot"],
  shows: ["memory", "memory_curve_by_interval", "memory_by_operator", "memory_snapshot", "memory_by_category"],
  wants: ["overview", "memory_curve_by_category", "memory_by_module", "memory_by_site", "memory_snapshot_by_stack"],
  tables: FOLDS,
  render(context) {
    const [ranks, curves, operators, snapshot, stacks] = ["memory", "memory_curve_by_interval", "memory_by_operator", "memory_snapshot", "memory_snapshot_by_stack"].map((name) => context.table(name));
    if (!ranks && !snapshot) {
      return present([emptyState("Memory was not recorded.", "Record it with `rankscope.Profiler(profile_memory=True)` or `rankscope run --profile-memory …`. A memory snapshot next to the traces (`memory_snapshot=True`) shows which code holds the memory."), tables(context, FOLDS.map((name) => ({ name })))]);
    }
    const device = chosenDevice(context, ranks ?? null);
    const categories = context.table("memory_by_category");
    const rank = categories && rankChoice(context, "memory", categories, false);
    const shown = categories && rank ? shownOf(categories, rank.rows, device.chosen) : null;
    const range = (name: string): { open: true; rows: (table: Table) => readonly number[] } | null => {
      const rows = name in INSTANTS ? inRange(context, shown, INSTANTS[name] ?? "") : null;
      return rows && { open: true, rows };
    };
    return present([
      ranks && h("div", {}, device.control, h("div", { class: "pair" }, curves && curvesOf(context, curves, device.chosen), categories ? atPeak(context, categories, ofKind(categories, device.chosen)) : peaks(context, ranks, device.chosen))),
      rank?.control,
      shown && ofRank(context, shown),
      operators && growth(context, operators, device.chosen, rank === null),
      snapshot && inUse(context, snapshot),
      stacks && byStack(stacks),
      tables(context, [{ name: "memory", open: true }, { name: "memory_snapshot", open: ranks === null }, ...FOLDS.map((name) => ({ name, ...(name === "memory_by_operator" ? { sort: { column: "self_increase", descending: true } } : {}), ...range(name) }))]),
    ]);
  },
};

/** Devices of one kind on all ranks: rank 3's `cuda:3` belongs next to rank 0's `cuda:0`. */
/** The kind whose allocated memory counts from the start of the recording. */
const HOST = "cpu";

function kindOf(device: unknown): string {
  return String(device ?? "").replace(/:\d+$/, "");
}

function chosenDevice(context: ViewContext, table: Table | null): { chosen: string; control: HTMLElement | null } {
  const kinds = [...new Set((table?.distinct("device") ?? []).map(kindOf))].sort((a, b) => Number(a === "cpu") - Number(b === "cpu"));
  const chosen = kinds.find((kind) => kind === context.place.params.get("device")) ?? kinds[0] ?? "";
  const control = kinds.length < 2 ? null : h("div", { class: "controls" }, selector("memory-device", "Memory of", kinds.map((kind) => ({ value: kind, label: kind === "cpu" ? "the host" : `${kind} devices` })), chosen, (value) => context.router.update({ device: value })));
  return { chosen, control };
}

/** Of one rank's rows the device of a kind, in the file with the highest peak. */
function shownOf(table: Table, rows: readonly number[], kind: string): Shown | null {
  const sorted = table.sorted(rows.filter((row) => kindOf(table.cell(row, "device")) === kind), { column: "peak_bytes", descending: true });
  const [row] = sorted;
  return row === undefined ? null : { rank: table.number(row, "rank") ?? 0, window: table.number(row, "window") ?? 0, device: String(table.cell(row, "device")) };
}

function ofKind(table: Table, kind: string): number[] {
  return table.rows().filter((row) => kindOf(table.cell(row, "device")) === kind);
}

/** All ranks' curves: what was allocated; where older files write no totals, the change since the file began. */
function curvesOf(context: ViewContext, table: Table, kind: string): HTMLElement | null {
  const rows = ofKind(table, kind);
  if (rows.length === 0) return null;
  const column = rows.some((row) => table.number(row, "allocated") !== null) ? "allocated" : "change";
  const lines = new Map<string, { name: string; top: number; points: [number, number][] }>();
  const several = new Set(rows.map((row) => table.cell(row, "window"))).size > 1;
  for (const row of rows) {
    const amount = table.number(row, column);
    if (amount === null) continue;
    const name = `Rank ${String(table.cell(row, "rank"))}${several ? `, window ${String(table.cell(row, "window"))}` : ""}`;
    const key = `${name}|${String(table.cell(row, "device"))}`;
    const line = lines.get(key) ?? { name, top: -Infinity, points: [] };
    lines.set(key, line);
    line.top = Math.max(line.top, amount);
    line.points.push([table.number(row, "at_ns") ?? 0, amount]);
  }
  const all = [...lines.values()];
  const highest = all.reduce<(typeof all)[number] | null>((best, line) => (best === null || line.top > best.top ? line : best), null);
  const what = column !== "allocated" ? "Allocated over time, relative to the start of recording" : kind === HOST ? "Allocated since recording began, over time" : "Allocated over time";
  const spec: LinesSpec = {
    lines: all.map((line) => ({ name: line.name, marked: line === highest, points: line.points })), stepped: true, describe: (at, amount) => `${formatBytes(amount)} at ${formatDuration(at)}`,
    along: { name: "Time since the first memory event", more: { min: 0 }, label: ticks(formatDuration) }, amounts: { format: formatBytes },
  };
  const drawing = chart(context, { label: `${what}, one line per rank.`, testId: "chart-memory", height: () => 300, option: (width) => linesOption(spec, width) });
  return h("figure", { class: "figure" }, h("figcaption", {}, what), all.length < 2 ? null : h("ul", { class: "legend" }, linesLegend(highest && `${highest.name} (highest)`, "other ranks")), drawing.element);
}

/** By rank the most that was allocated at once. */
function peaks(context: ViewContext, table: Table, kind: string): HTMLElement | null {
  const rows = table.sorted(ofKind(table, kind), { column: "rank", descending: false });
  const column = rows.some((row) => table.number(row, "peak_allocated") !== null) ? "peak_allocated" : "change_peak";
  if (rows.length === 0) return null;
  const several = new Set(rows.map((row) => table.cell(row, "window"))).size > 1;
  return h("div", {}, stackedChart(context, {
    label: "Peak allocated memory of each rank.", title: column !== "peak_allocated" ? "Peak relative to the start of recording" : kind === HOST ? "Peak since recording began" : "Peak", testId: "chart-memory-peak", axis: "Rank",
    bars: rows.map((row) => `${String(table.cell(row, "rank"))}${several ? ` (window ${String(table.cell(row, "window"))})` : ""}`), format: formatBytes,
    segments: [{ category: "memory", label: "Peak", values: rows.map((row) => table.number(row, column)) }],
    onPick: (index) => { location.hash = leadTo(context, table.number(rows[index] ?? 0, "rank"), table.number(rows[index] ?? 0, "peak_step")) ?? location.hash; },
  }));
}

/** Which operators left most behind. */
function growth(context: ViewContext, table: Table, kind: string, withControl: boolean): HTMLElement | null {
  const choice = rankChoice(context, "memory", table);
  const rows = choice.rows.filter((row) => kindOf(table.cell(row, "device")) === kind);
  const bars = topNames(context, table, { rows, mixed: choice.mixed }, { testId: "bars-memory", analysis: "memory_by_operator", name: "name", column: "self_increase", title: "By operator: allocated minus released by the operator itself", category: () => "memory" });
  return bars && h("div", {}, withControl ? choice.control : null, bars);
}

/** A snapshot's devices: in use, pending, free. */
function inUse(context: ViewContext, table: Table): HTMLElement {
  const rows = table.sorted(table.rows(), { column: "rank", descending: false });
  const pick = (column: string): (number | null)[] => rows.map((row) => table.number(row, column));
  return h("div", {}, stackedChart(context, {
    label: "Allocator state of each device at the snapshot.", title: "Memory snapshot: allocator state", testId: "chart-snapshot", axis: "Rank", format: formatBytes,
    bars: rows.map((row) => `${String(table.cell(row, "rank") ?? "?")} (device ${String(table.cell(row, "device") ?? "?")})`),
    segments: [{ category: "memory", label: "In use", values: pick("allocated") }, { category: "waiting", label: "Freed, still used by a stream", values: pick("pending") }, { category: "idle", label: "Free", values: pick("free") }],
    totals: { label: "Held", values: pick("reserved") },
  }));
}

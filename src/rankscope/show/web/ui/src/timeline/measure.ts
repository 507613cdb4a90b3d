/** A stretch measured: per rank the time in each category, and the names with the most self time, as the server adds them up. */
import type { ColumnFile } from "../data/column_file.ts";
import type { AnalysisPayload, Cell } from "../data/payload.ts";
import { Table } from "../data/table.ts";
import { button } from "../components/controls.ts";
import { h, named, styled } from "../components/dom.ts";
import { barList } from "../components/bar_list.ts";
import { categoryClass, swatch } from "../components/swatch.ts";
import { tableView } from "../components/table_view.ts";
import { counted } from "../format/ranks.ts";
import { formatDuration, grouped } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import type { Layout } from "./layout.ts";
import type { Model } from "./model.ts";
import type { Window } from "./window.ts";

export interface MeasureActs {
  find(name: string): void;
}

const BARS = 16;
const NAMES = 12;

export function summaryOf(context: ViewContext, model: Model, window: Window, file: ColumnFile, acts: MeasureActs): HTMLElement[] {
  const { layout } = model;
  const length = window.to - window.from;
  const analysis = byRank(layout, file);
  const table = new Table(analysis);
  const top = file.u32("top_name");
  const bars = Array.from(top.subarray(0, NAMES), (name, index) => ({
    label: button({ class: "link" }, () => acts.find(model.names.get(name) ?? ""), named(model.names.get(name) ?? `name ${name}`, 110)),
    value: file.f64("top_self_ns")[index] ?? 0, unit: "ns", category: layout.categories[file.u8("top_category")[index] ?? 0]?.category ?? "other" as const, note: `${counted(file.u32("top_count")[index] ?? 0, "event")}, total ${formatDuration(file.f64("top_ns")[index] ?? 0, 3)}`,
  }));
  const leftOut = (file.meta["left_out"] as unknown[] | undefined)?.length ?? 0;
  return [
    ...(leftOut === 0 ? [] : [h("p", { class: "quiet-line" }, `Left out, as the range has too many events: ${counted(leftOut, "rank")}. Choose a shorter range, or filter the ranks.`)]),
    h("div", { class: "pair" },
      h("figure", { class: "figure" }, h("figcaption", {}, "Time per category and rank"), shares(layout, table, length)),
      h("figure", { class: "figure" }, h("figcaption", {}, "Top names by self time"), bars.length > 0 ? barList(bars, "Top names by self time", "measure-names") : h("p", {}, "No events in this range."))),
    tableView(context, { name: "measured", table, caption: "Time per category and rank in the measured range" })];
}

/** What no category of the analyses is. */
const OTHER = "Other: what the profiler records of itself, markers, and the waiting for streams and events that it draws on a stream.";

/** Each category's share of the range, next to its name: categories overlap, so these do not add up to the whole. */
function shares(layout: Layout, table: Table, length: number): HTMLElement {
  const columns = table.columns.slice(1).filter((column) => column.endsWith("_ns"));
  const rows = table.rows().slice(0, BARS);
  return h("div", { class: "tl-shares", tabindex: "0", role: "region", "aria-label": "Time per category and rank" }, rows.map((row) => h("div", { class: "tl-share" }, h("span", { class: "which" }, `Rank ${table.cell(row, "rank")}`),
    h("ul", {}, columns.map((column) => {
      const value = table.number(row, column) ?? 0;
      const about = layout.categories.find(({ category }) => `${category}_ns` === column);
      if (value === 0 || !about) return null;
      return h("li", { title: `${about.title}: ${grouped(value)} ns` }, swatch(about.category), h("span", {}, about.title),
        h("span", { class: "track", "aria-hidden": "true" }, styled(h("span", { class: `fill ${categoryClass(about.category)}` }), { width: `${Math.min(100, (100 * value) / length).toFixed(2)}%` })),
        h("span", { class: "amount" }, formatDuration(value, 3)));
    })))), table.length > BARS ? h("p", { class: "quiet-line" }, `First ${BARS} of ${table.length} ranks; the table lists all.`) : null,
    columns.includes("other_ns") ? h("p", { class: "quiet-line" }, OTHER) : null);
}

function byRank(layout: Layout, file: ColumnFile): AnalysisPayload {
  const [ranks, categories, busy, counts] = [file.u32("busy_rank"), file.u8("busy_category"), file.f64("busy_ns"), file.u32("busy_count")];
  const rows = [...new Set(ranks)].sort((a, b) => a - b);
  const place = new Map(rows.map((rank, index) => [rank, index]));
  const present = [...new Set(categories)].sort((a, b) => a - b);
  const data: Record<string, Cell[]> = { rank: [...rows] };
  const columns: Record<string, { unit: string; doc: string }> = { rank: { unit: "", doc: "the rank" } };
  for (const category of present) {
    const about = layout.categories[category];
    if (!about) continue;
    data[`${about.category}_ns`] = rows.map(() => 0);
    columns[`${about.category}_ns`] = { unit: "ns", doc: `${about.title}: time within the range in which at least one such event runs${about.category === "other" ? `. ${OTHER}` : ""}` };
  }
  data["events"] = rows.map(() => 0);
  columns["events"] = { unit: "count", doc: "events that overlap the range" };
  for (let i = 0; i < ranks.length; i++) {
    const about = layout.categories[categories[i]!];
    const row = place.get(ranks[i]!);
    if (!about || row === undefined) continue;
    data[`${about.category}_ns`]![row] = busy[i]!;
    data["events"]![row] = (data["events"]![row] as number) + counts[i]!;
  }
  return { title: "Measured range", doc: "", columns, data, truncated: null };
}

import { scatterChart } from "../charts/scatter.ts";
import { barList } from "../components/bar_list.ts";
import { h, named } from "../components/dom.ts";
import { analysisCaption, emptyState, truncationNote } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import type { Table } from "../data/table.ts";
import { formatBytes, grouped } from "../format/units.ts";
import type { View, ViewContext } from "./view.ts";

const TOP = 12;

export const collectives: View = {
  id: "collectives",
  title: "Collectives",
  question: "Which collectives take the time, and at which sizes?",
  shows: ["collectives", "collective_summary"],
  render(context) {
    const [each, kinds] = [context.table("collectives"), context.table("collective_summary")];
    if (!each && !kinds) {
      return [emptyState("These traces hold no collective.", "A job on one rank has none. On several, record the device’s activity (nccl, rccl, oneccl) or, on CPU, gloo’s ranges, and let the recorded steps include the backward pass.")];
    }
    return [
      h("div", { class: "pair" }, kinds && byKind(kinds), each && scatterChart(context, each, Math.max(320, 42 * Math.min(TOP, kinds?.length ?? 0) - 40))),
      ...section(context, "collective_summary", "-total_ns"),
      ...section(context, "collectives", null),
    ];
  },
};

function byKind(kinds: Table): HTMLElement {
  const rows = kinds.sorted(kinds.rows(), { column: "total_ns", descending: true }).slice(0, TOP);
  const bars = rows.map((row) => {
    const bytes = kinds.number(row, "bytes");
    const size = kinds.number(row, "group_size");
    const what = [kinds.cell(row, "dtype"), bytes === null ? null : formatBytes(bytes), size === null ? null : `${size} ranks`].filter((part) => part !== null);
    const count = kinds.number(row, "count");
    return {
      label: [named(String(kinds.cell(row, "collective") ?? "unnamed"), 60), h("small", {}, what.map((part) => [" · ", named(String(part), 40)]))],
      value: kinds.number(row, "total_ns") ?? 0, unit: "ns", category: "communication" as const,
      ...(count === null ? {} : { note: `in ${grouped(count)} ${count === 1 ? "call" : "calls"}` }),
    };
  });
  const title = rows.length < kinds.length ? `Total time by kind and size: the ${rows.length} greatest of ${kinds.length}` : "Total time by kind and size";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-collectives"));
}

function section(context: ViewContext, name: string, order: string | null): HTMLElement[] {
  const table = context.table(name);
  const analysis = context.payload.analyses.get(name);
  if (!table || !analysis) return [];
  const column = order?.replace(/^-/, "") ?? "";
  return [h("section", { "aria-label": analysis.title }, h("h3", {}, analysis.title), analysisCaption(analysis), truncationNote(name, analysis),
    tableView(context, { name, table, caption: analysis.title, ...(order && table.has(column) ? { sort: { column, descending: order.startsWith("-") } } : {}) }))];
}

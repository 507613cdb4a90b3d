import { scatterChart } from "../charts/scatter.ts";
import { barList } from "../components/bar_list.ts";
import { h, named } from "../components/dom.ts";
import { eventsHref, returningLink } from "../components/event_link.ts";
import { emptyState } from "../components/notes.ts";
import { swatch } from "../components/swatch.ts";
import { tables } from "../components/tables.ts";
import type { Table } from "../data/table.ts";
import { counted } from "../format/ranks.ts";
import { formatBytes } from "../format/units.ts";
import { exchanges } from "./exchanges.ts";
import { order } from "./stragglers.ts";
import { present, type View, type ViewContext } from "./view.ts";

const TOP = 12;

export const collectives: View = {
  id: "collectives",
  title: "Collectives",
  group: "ranks",
  question: "Which collectives take the most time, at which sizes, and is it transfer or waiting?",
  answers: ["collective_summary"],
  shows: ["collectives", "collective_summary"],
  wants: ["collective_summary_by_rank", "all_to_all"],
  tables: ["collective_summary_by_rank", "all_to_all"],
  render(context) {
    const [each, kinds] = [context.table("collectives"), context.table("collective_summary")];
    if (!each && !kinds) {
      return [emptyState("No collectives in these traces.", "A single-rank job has none. With several ranks, record device activity (NCCL, RCCL, oneCCL) or, on CPU, Gloo ranges, and include the backward pass in the recorded steps.")];
    }
    const height = Math.max(320, 42 * Math.min(TOP, kinds?.length ?? 0) - 40);
    return present([
      h("div", { class: "pair" }, kinds && byKind(context, kinds, each), each && scatterChart(context, each, { y: "duration_ns", title: "Duration vs. size", testId: "chart-collectives", height }),
        kinds && scatterChart(context, kinds, { y: "bus_bandwidth", title: "Bus bandwidth vs. size", testId: "chart-bandwidth", height: 320 }), order(context)),
      exchanges(context),
      tables(context, [{ name: "collective_summary", open: true, sort: { column: "total_ns", descending: true }, ...(each && kinds ? { eventsOf: (row: number, column: string) => (column === "collective" ? longestOf(context, kinds, row, each) : null) } : {}) },
        { name: "collectives", open: true, first: ["rank", "step", "collective", "bytes", "duration_ns", "wait_ns", "transfer_ns"], sort: { column: "duration_ns", descending: true } }, { name: "collective_summary_by_rank" }, { name: "all_to_all" }]),
    ]);
  },
};

/** The columns by which calls are summed up. */
const KIND = ["group", "group_size", "collective", "dtype", "bytes"] as const;

/** The address of the longest call of a kind; null where the page has none of its calls. */
function longestOf(context: ViewContext, kinds: Table, row: number, each: Table): string | null {
  const key = (table: Table, of: number): string => JSON.stringify(KIND.map((column) => table.cell(of, column)));
  let longest = longestCalls.get(each);
  if (!longest) {
    longestCalls.set(each, longest = new Map());
    for (const call of each.rows()) {
      const [kind, duration] = [key(each, call), each.number(call, "duration_ns") ?? -1];
      const best = longest.get(kind);
      if (best === undefined || duration > (each.number(best, "duration_ns") ?? -1)) longest.set(kind, call);
    }
  }
  const call = longest.get(key(kinds, row));
  return call === undefined ? null : eventsHref(context, "collectives", each, call);
}

const longestCalls = new WeakMap<Table, Map<string, number>>();

function byKind(context: ViewContext, kinds: Table, each: Table | null): HTMLElement {
  const groups = kinds.distinct("group").length > 1;
  const rows = kinds.sorted(kinds.rows(), { column: "total_ns", descending: true }).slice(0, TOP);
  const bars = rows.map((row) => {
    const bytes = kinds.number(row, "bytes");
    const [size, wait] = [kinds.number(row, "group_size"), kinds.number(row, "wait_ns")];
    const what = [kinds.cell(row, "dtype"), bytes === null ? null : formatBytes(bytes), size === null ? null : `${size} ranks`, groups ? kinds.cell(row, "group") : null].filter((part) => part !== null);
    const count = kinds.number(row, "count");
    const [name, href] = [named(String(kinds.cell(row, "collective") ?? "unnamed"), 60), each && longestOf(context, kinds, row, each)];
    return {
      label: [href === null ? name : returningLink(context, href, `bars-collectives.${row}`, { class: "row-link", title: "The longest call" }, name), h("small", {}, what.map((part) => [" · ", named(String(part), 40)]))],
      value: kinds.number(row, "total_ns") ?? 0, unit: "ns", category: "transfer" as const,
      ...(wait === null ? {} : { pieces: [{ value: wait, category: "waiting" as const }] }),
      ...(count === null ? {} : { note: counted(count, "call") }),
    };
  });
  const title = rows.length < kinds.length ? `Total time by kind and size: top ${rows.length} of ${kinds.length}` : "Total time by kind and size";
  return h("figure", { class: "figure" }, h("figcaption", {}, title),
    h("ul", { class: "legend" }, h("li", { class: "legend-item" }, swatch("waiting"), "Waiting for later ranks"), h("li", { class: "legend-item" }, swatch("transfer"), "Transfer or unknown")),
    barList(bars, title, "bars-collectives"));
}

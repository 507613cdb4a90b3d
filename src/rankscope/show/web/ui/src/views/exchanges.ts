/** All-to-alls: who sends how much to whom, one role of one group at a time, and what each rank receives. */
import { heatMap } from "../charts/heat.ts";
import { answer } from "../components/answer.ts";
import { barList } from "../components/bar_list.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import type { Table } from "../data/table.ts";
import { formatBytes, formatRatio } from "../format/units.ts";
import { leadTo, type ViewContext } from "./view.ts";

const TOP = 16;

interface Exchange {
  readonly id: string;
  readonly label: string;
  readonly rows: readonly number[];
}

/** The section, or null where no rank recorded the sizes of an all-to-all. */
export function exchanges(context: ViewContext): HTMLElement | null {
  const table = context.table("all_to_all");
  if (!table) return null;
  const found = exchangesOf(table);
  const chosen = found.find(({ id }) => id === context.place.params.get("exchange")) ?? found[0];
  if (!chosen) return null;
  const headline = context.payload.analyses.get("all_to_all")?.headline;
  return h("section", { "aria-labelledby": "exchanges-title" },
    h("div", { class: "section-head" }, h("h3", { id: "exchanges-title" }, "All-to-all: bytes from sender to receiver"),
      found.length > 1 && selector("exchange", "Show:", found.map(({ id, label }) => ({ value: id, label })), chosen.id, (value) => context.router.update({ exchange: value }))),
    headline ? answer("all_to_all", headline) : null,
    h("div", { class: "pair" }, pairs(context, table, chosen), received(table, chosen)));
}

/** Groups and roles, uneven exchanges and dispatches first. */
function exchangesOf(table: Table): Exchange[] {
  const apart = new Map<string, number[]>();
  for (const row of table.rows()) {
    const id = JSON.stringify(["group", "group_ranks", "role"].map((column) => table.cell(row, column)));
    const rows = apart.get(id);
    if (rows) rows.push(row);
    else apart.set(id, [row]);
  }
  const several = new Set(table.distinct("group_ranks")).size > 1;
  const weight = ({ rows }: Exchange): number => {
    const role = table.cell(rows[0] ?? 0, "role");
    return role === "dispatch" ? 0 : role === "combine" ? 1 : rows.some((row) => (table.number(row, "uneven_calls") ?? 0) > 0) ? 2 : 3;
  };
  return [...apart].map(([id, rows]) => {
    const first = rows[0] ?? 0;
    const role = table.cell(first, "role");
    const group = `${String(table.cell(first, "group") ?? "")}${several ? ` ${String(table.cell(first, "group_ranks") ?? "")}` : ""}`;
    return { id, rows, label: `${role === null ? "other exchanges" : String(role)} · ${group}` };
  }).sort((one, other) => weight(one) - weight(other));
}

function pairs(context: ViewContext, table: Table, { label, rows }: Exchange): HTMLElement {
  const numbers = (column: string): number[] => [...new Set(rows.map((row) => table.number(row, column) ?? -1))].sort((a, b) => a - b);
  const [senders, receivers] = [numbers("rank"), numbers("peer")];
  const sent = new Map(rows.map((row) => [`${table.number(row, "rank")}:${table.number(row, "peer")}`, table.number(row, "sent_bytes")]));
  const of = (row: number, column: number): number | null => sent.get(`${senders[row]}:${receivers[column]}`) ?? null;
  return h("div", { class: "figure" }, heatMap(context, {
    label: `Bytes sent: ${label}`, testId: "exchanges", ink: "--cat-communication", format: formatBytes,
    rows: senders.map((rank) => `from ${rank}`), columns: receivers.map((rank, index) => (index === 0 ? `to ${rank}` : String(rank))),
    values: senders.flatMap((_, row) => receivers.map((__, column) => of(row, column))),
    what: (row, column) => `Rank ${senders[row]} to rank ${receivers[column]}`,
    onPick: (row) => { location.hash = leadTo(context, senders[row] ?? 0) ?? location.hash; },
  }));
}

/** What each rank receives from the senders in the traces. */
function received(table: Table, { rows }: Exchange): HTMLElement {
  const loads = new Map<number, { bytes: number; ratio: number | null }>();
  for (const row of rows) {
    const peer = table.number(row, "peer") ?? -1;
    loads.set(peer, { bytes: (loads.get(peer)?.bytes ?? 0) + (table.number(row, "sent_bytes") ?? 0), ratio: table.number(row, "imbalance") });
  }
  const sorted = [...loads].sort(([, one], [, other]) => other.bytes - one.bytes);
  const bars = sorted.slice(0, TOP).map(([rank, { bytes, ratio }]) => ({
    label: `Rank ${rank}`, value: bytes, unit: "bytes", category: "transfer" as const, ...(ratio === null ? {} : { note: `${formatRatio(ratio)} of the mean` }),
  }));
  const title = sorted.length > TOP ? `Received: top ${TOP} of ${sorted.length} ranks` : "Received by each rank";
  return h("figure", { class: "figure" }, h("figcaption", {}, title), barList(bars, title, "bars-exchanges"));
}

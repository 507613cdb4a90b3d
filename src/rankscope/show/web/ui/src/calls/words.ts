/** Times and differences of nodes as text: the same in flame graph, table and for screen readers. */
import { shownName } from "../format/text.ts";
import { formatDuration, formatRatio, grouped, significant } from "../format/units.ts";
import { more, type Node } from "./tree.ts";

/** Below this share of both sides, a difference counts as none. */
const SAME = 0.01;

export type Sign = "more" | "less" | "same";

export function signOf(node: Node): Sign {
  return signBetween(node.own.total, node.other.total);
}

export function signBetween(own: number, other: number): Sign {
  if (Math.abs(own - other) <= SAME * Math.max(own, other)) return "same";
  return own > other ? "more" : "less";
}

export function signed(ns: number): string {
  return ns === 0 ? "0" : `${ns > 0 ? "+" : "−"}${formatDuration(Math.abs(ns), 3)}`;
}

export function count(value: number): string {
  return Number.isInteger(value) ? grouped(value) : significant(value, 3);
}

/** A node in one line; `compared` says with what. */
export function sentence(node: Node, whole: number, compared: string | null): string {
  const { own, other } = node;
  const share = whole > 0 ? ` (${formatRatio(own.total / whole)})` : "";
  const versus = compared === null ? "" : ` · ${signed(more(node))} compared with ${compared} (${formatDuration(other.total, 3)})`;
  return `${shownName(node.name, 160)}: total ${formatDuration(own.total, 3)}${share}, self ${formatDuration(own.self, 3)}, ${count(own.calls)} ${own.calls === 1 ? "call" : "calls"}${versus}${ranksOf(node)}`;
}

function ranksOf({ ranks }: Node): string {
  if (ranks.size < 2) return "";
  const sorted = [...ranks].sort(([, a], [, b]) => b - a);
  const [[most, high], [least, low]] = [sorted[0]!, sorted[sorted.length - 1]!];
  return ` · most on rank ${most} (${formatDuration(high, 3)}), least on rank ${least} (${formatDuration(low, 3)})`;
}

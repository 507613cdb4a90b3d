/** Tables as CSV (RFC 4180), exact values. A spreadsheet must not run a kernel's name as a formula. */
import type { Cell } from "../data/payload.ts";
import type { Table } from "../data/table.ts";

const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

export function csvField(value: Cell): string {
  if (value === null) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const raw = typeof value === "string" ? value : value.join(" ");
  const safe = FORMULA.test(raw) ? `'${raw}` : raw;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function toCsv(table: Table, rows: readonly number[]): string {
  const columns = table.columns.map((column) => table.values(column));
  const lines = [table.columns.map(csvField).join(",")];
  for (const row of rows) lines.push(columns.map((values) => csvField(values[row] ?? null)).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

/** A file name that holds nothing but letters, digits, dots, dashes and underscores. */
export function csvFileName(run: string, analysis: string): string {
  const clean = (text: string): string => text.replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[._]+/, "").slice(0, 60);
  return `${["rankscope", clean(run), clean(analysis)].filter(Boolean).join("_")}.csv`;
}

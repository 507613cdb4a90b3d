/** How wide a column is: fixed before rows are drawn, so that scrolling through a virtual table moves no column. */
import type { Table } from "../data/table.ts";
import { columnLabel, shownName } from "../format/text.ts";
import { formatCell } from "../format/units.ts";

/** What is visible without scrolling on a usual screen, in characters. */
const IN_SIGHT = 100;
const NARROWEST = 5;
const WIDEST = 56;
const SAMPLE = 400;

/** Columns as they are shown: those without any value behind the others, and what the table is sorted by at first never out of sight. */
export function columnOrder(table: Table, rows: readonly number[], sorted: string | null): string[] {
  const filled = (column: string): boolean => rows.some((row) => table.cell(row, column) !== null);
  const order = [...table.columns.filter(filled), ...table.columns.filter((column) => !filled(column))];
  const at = sorted === null ? -1 : order.indexOf(sorted);
  const before = columnWidths(table, rows, order.slice(0, at + 1)).reduce((sum, width) => sum + width, 0);
  const name = order.findIndex((column) => !table.isNumeric(column));
  if (at < 0 || before <= IN_SIGHT || name < 0 || name >= at) return order;
  return [...order.slice(0, name + 1), ...order.splice(at, 1), ...order.slice(name + 1)];
}

export function columnWidths(table: Table, rows: readonly number[], columns: readonly string[] = table.columns): number[] {
  const stride = Math.max(1, Math.floor(rows.length / SAMPLE));
  const sample = rows.filter((_, index) => index % stride === 0);
  return columns.map((column) => {
    const { unit, instant } = table.meta(column);
    const head = label(table, column); // bold, with an arrow, on two lines where it is long
    let longest = Math.ceil(1.15 * Math.max(head.length / 2, ...head.split(" ").map((word) => word.length))) + 2;
    for (const row of sample) {
      const value = table.cell(row, column);
      const length = typeof value === "string" ? shownName(value).length + (column === "category" ? 3 : 0) : formatCell(value, unit, instant).length;
      if (length > longest) longest = length;
    }
    return Math.min(WIDEST, Math.max(NARROWEST, longest)) + 3;
  });
}

/** A column's head; if two columns differ only in the unit's suffix (`window`, `window_ns`), the unit is in the title. */
export function label(table: Table, column: string): string {
  return column.endsWith("_ns") && table.has(column.replace(/_ns$/, "")) ? `${columnLabel(column)} time` : columnLabel(column);
}

/** The longest bar of a column: the scale of the others. */
export function largest(table: Table, column: string, rows: readonly number[]): number {
  let peak = 0;
  for (const row of rows) peak = Math.max(peak, table.number(row, column) ?? 0);
  return peak;
}

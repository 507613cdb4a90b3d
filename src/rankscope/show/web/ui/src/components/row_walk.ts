/** From one row of a table to the next while the timeline shows their events: which row it is, in which order of the table. */
import type { Sort, Table } from "../data/table.ts";

/** The parameter of the timeline that keeps the row. */
export const WALK = "row";

/** A row of an analysis’s table, and the column whose links are followed. */
export interface WalkedRow {
  readonly analysis: string;
  readonly row: number;
  readonly column: string;
}

/** The rows as the table showed them when the reader left it: a view may show some of them, in an order of its own. */
let left: { readonly analysis: string; readonly table: Table; readonly rows: readonly number[] } | null = null;

export function leftRows(analysis: string, table: Table, rows: readonly number[]): void {
  left = { analysis, table, rows: [...rows] };
}

/** The rows of a table as they are shown: which, in what order and by what filter. */
export interface ShownRows {
  readonly rows: readonly number[];
  readonly sort: Sort | null;
  readonly query: string;
}

/** What a link to a row’s events takes along: the row, and the order and filter of its table. */
export function walkParams(analysis: string, row: number, column: string, { sort, query }: ShownRows): Record<string, string> {
  return {
    [WALK]: `${analysis}.${row}.${column}`, ...(sort === null ? {} : { [`${analysis}.sort`]: `${sort.descending ? "-" : ""}${sort.column}` }), ...(query === "" ? {} : { [`${analysis}.q`]: query }),
  };
}

export function readWalk(text: string | undefined): WalkedRow | null {
  const found = /^([\w-]{1,80})\.(\d{1,9})\.(\w{1,80})$/.exec(text ?? "");
  return found ? { analysis: found[1]!, row: Number(found[2]), column: found[3]! } : null;
}

/** The rows to walk: those that the reader left, else all in the order and with the filter that the address names. */
export function rowsToWalk(table: Table, { analysis }: WalkedRow, params: ReadonlyMap<string, string>): readonly number[] {
  if (left?.analysis === analysis && left.table === table) return left.rows;
  return table.sorted(table.matching(table.rows(), params.get(`${analysis}.q`) ?? ""), sortOf(params.get(`${analysis}.sort`), table));
}

/** `-duration_ns` as an order. */
export function sortOf(text: string | undefined, table: Table): Sort | null {
  if (!text) return null;
  const column = text.replace(/^-/, "");
  return table.has(column) ? { column, descending: text.startsWith("-") } : null;
}

/** The parameters of a table’s order and filter. */
export function orderKeys(analysis: string): readonly string[] {
  return [`${analysis}.sort`, `${analysis}.q`];
}

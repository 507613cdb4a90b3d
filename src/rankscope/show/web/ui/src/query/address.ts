/** A query, its chart and saved queries in the URL: a link opens them. */
import type { Query } from "../data/query.ts";

export interface Saved {
  readonly name: string;
  readonly sql: string;
}

export const CHARTS = ["bars", "dots", "line"] as const;
export type ChartKind = (typeof CHARTS)[number];

export interface ChartChoice {
  readonly x: string;
  readonly y: string;
  readonly kind: ChartKind;
}

const MOST_SAVED = 30;
const LONGEST = 100_000;

export function readQuery(params: ReadonlyMap<string, string>, rows: number): Query | null {
  const sql = params.get("sql") ?? "";
  const limit = Number(params.get("limit") ?? rows);
  if (sql.trim() === "" || sql.length > LONGEST) return null;
  return { sql, limit: Number.isInteger(limit) && limit > 0 ? limit : rows };
}

export function writeQuery({ sql, limit }: Query, rows: number): Record<string, string> {
  return { sql, limit: limit === rows ? "" : String(limit) };
}

/** The chart that the address chooses, as far as the rows have its columns. */
export function readChart(params: ReadonlyMap<string, string>, columns: readonly string[], numeric: readonly string[]): ChartChoice | null {
  const [x, y, kind] = [params.get("x") ?? "", params.get("y") ?? "", params.get("chart") ?? ""];
  if (!columns.includes(x) || !numeric.includes(y)) return null;
  return { x, y, kind: CHARTS.find((each) => each === kind) ?? "bars" };
}

export function readSaved(text: string | undefined): Saved[] {
  try {
    const found: unknown = JSON.parse(text ?? "[]");
    if (!Array.isArray(found)) return [];
    return found.flatMap((each: unknown) => (Array.isArray(each) && typeof each[0] === "string" && typeof each[1] === "string" ? [{ name: each[0].slice(0, 80), sql: each[1].slice(0, LONGEST) }] : [])).slice(0, MOST_SAVED);
  } catch {
    return [];
  }
}

export function writeSaved(saved: readonly Saved[]): string {
  return saved.length === 0 ? "" : JSON.stringify(saved.map(({ name, sql }) => [name, sql]));
}

/** A columnar table and the orders and selections of its rows. Rows are indices; no row object is ever made. */
import type { AnalysisPayload, Cell, Column } from "./payload.ts";

export interface Sort {
  readonly column: string;
  readonly descending: boolean;
}

export class Table {
  readonly columns: readonly string[];
  readonly length: number;
  readonly #payload: AnalysisPayload;
  #haystack: string[] | null = null;

  constructor(payload: AnalysisPayload) {
    this.#payload = payload;
    this.columns = Object.keys(payload.columns);
    this.length = payload.data[this.columns[0] ?? ""]?.length ?? 0;
  }

  has(column: string): boolean {
    return Object.hasOwn(this.#payload.columns, column);
  }

  meta(column: string): Column {
    return (this.has(column) ? this.#payload.columns[column] : undefined) ?? { unit: "", doc: "" };
  }

  values(column: string): readonly Cell[] {
    return (this.has(column) ? this.#payload.data[column] : undefined) ?? [];
  }

  /** Whether any row has more than 0 in one of these columns. */
  hasAny(...columns: readonly string[]): boolean {
    return columns.some((column) => this.values(column).some((value) => typeof value === "number" && value > 0));
  }

  cell(row: number, column: string): Cell {
    return this.values(column)[row] ?? null;
  }

  /** The number at a place, or null if there is none. */
  number(row: number, column: string): number | null {
    const value = this.cell(row, column);
    return typeof value === "number" ? value : null;
  }

  /** True where every value that is there is a number (or none is there and the column has a unit). */
  isNumeric(column: string): boolean {
    const first = this.values(column).find((value) => value !== null);
    return first === undefined ? this.meta(column).unit !== "" : typeof first === "number";
  }

  rows(): number[] {
    return Array.from({ length: this.length }, (_, row) => row);
  }

  where(column: string, value: Cell): number[] {
    const values = this.values(column);
    return this.rows().filter((row) => values[row] === value);
  }

  /** The different values of a column: numbers in order, else as they come. */
  distinct(column: string): Cell[] {
    const seen = [...new Set(this.values(column))];
    return seen.every((value) => typeof value === "number") ? (seen as number[]).sort((a, b) => a - b) : seen;
  }

  /** Rows in which every word of the query occurs, in names or in numbers without a unit (ranks, steps, streams). */
  matching(rows: readonly number[], query: string): number[] {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return [...rows];
    const haystack = (this.#haystack ??= this.#searchable());
    return rows.filter((row) => words.every((word) => haystack[row]?.includes(word)));
  }

  sorted(rows: readonly number[], sort: Sort | null): number[] {
    if (!sort || !this.has(sort.column)) return [...rows];
    const values = this.values(sort.column);
    const sign = sort.descending ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [values[a] ?? null, values[b] ?? null];
      if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1; // what is not known comes last, both ways
      return sign * compareCells(x, y) || a - b;
    });
  }

  #searchable(): string[] {
    const columns = this.columns.filter((name) => !this.isNumeric(name) || this.meta(name).unit === "");
    return this.rows().map((row) => columns.map((name) => String(this.cell(row, name) ?? "")).join("\n").toLowerCase());
  }
}

/** Texts as people order them: group 2 before group 10. */
const BY_NUMBER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

export function compareCells(x: NonNullable<Cell>, y: NonNullable<Cell>): number {
  if (typeof x === "number" && typeof y === "number") return x - y;
  return BY_NUMBER.compare(String(x), String(y));
}

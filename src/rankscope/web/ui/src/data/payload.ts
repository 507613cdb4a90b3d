/** The shapes that Python writes and the page reads. The page formats and lays out; it computes no number of meaning. */

export const SCHEMA_VERSION = 1;

/** One value of a column. Lists are ranks of a group and their like. */
export type Cell = string | number | boolean | null | readonly (string | number)[];

export interface Column {
  readonly unit: string;
  readonly doc: string;
}

export interface Truncation {
  readonly shown: number;
  readonly total: number;
}

/** An analysis' answer in a sentence: `{name}` in its text stands for a value. */
export interface Headline {
  readonly text: string;
  readonly values: readonly Evidence[];
}

export interface AnalysisPayload {
  readonly title: string;
  readonly doc: string;
  readonly headline?: Headline | null;
  readonly columns: Readonly<Record<string, Column>>;
  readonly data: Readonly<Record<string, readonly Cell[]>>;
  readonly truncated: Truncation | null;
  /** Where a server holds the rows: how many, and whether they can be had. Absent once they are here. */
  readonly away?: { readonly rows: number; readonly state: "ready" | "pending" | "failed" };
}

export interface RunInfo {
  readonly id: string | null;
  /** What to call it: its directory's name. */
  readonly name: string | null;
  readonly path: string;
  readonly command: readonly string[] | null;
  readonly world_size: number | null;
  readonly ranks: readonly number[];
  readonly missing_ranks: readonly number[];
  readonly hosts: readonly string[];
  readonly devices: readonly string[];
  readonly steps: readonly number[];
  /** What wrote the traces: a profiler, and its versions where they say. */
  readonly written_by: readonly string[];
}

export type Severity = "error" | "warning" | "info";

export interface Evidence {
  readonly name: string;
  readonly value: Cell;
  readonly unit: string;
}

export interface Finding {
  readonly id: string;
  readonly severity: Severity;
  readonly title: string;
  readonly ranks: readonly number[];
  readonly steps: readonly number[];
  readonly evidence: readonly Evidence[];
  readonly saving_ns: number | null;
  readonly advice: string;
  /** Where it is seen best, as the server says; null in a report, and while the ranks are still compared. */
  readonly place: { readonly rank: number | null; readonly step: number | null } | null;
}

export interface Payload {
  readonly generatedBy: string;
  /** When the report was written; empty where it does not say. */
  readonly generatedAt: string;
  readonly run: RunInfo;
  readonly analyses: ReadonlyMap<string, AnalysisPayload>;
  readonly findings: readonly Finding[];
  /** What of the payload could not be used, one sentence each; shown, never swallowed. */
  readonly problems: readonly string[];
}

/** The shapes that Python writes and the page reads. The page formats and lays out; it computes no number of meaning. */

export const SCHEMA_VERSION = 1;

/** One value of a column. Lists are ranks of a group and their like. */
export type Cell = string | number | boolean | null | readonly (string | number)[];

export interface Column {
  readonly unit: string;
  readonly doc: string;
  /** Its values are moments, not lengths. */
  readonly instant?: boolean;
}

export interface Truncation {
  readonly shown: number;
  readonly total: number;
}

/** An analysis' answer in one sentence: `{name}` in its text is the place of a value. */
export interface Headline {
  readonly text: string;
  readonly values: readonly Evidence[];
}

/** A chart of an analysis: its rows as named bars, the longest first. */
export interface Bars {
  /** The column with the bars' names. */
  readonly name: string;
  /** The column with their lengths. */
  readonly value: string;
  readonly title: string;
}

export interface AnalysisPayload {
  readonly title: string;
  readonly doc: string;
  readonly headline?: Headline | null;
  readonly columns: Readonly<Record<string, Column>>;
  readonly data: Readonly<Record<string, readonly Cell[]>>;
  readonly truncated: Truncation | null;
  readonly charts?: readonly Bars[];
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
  /** The profiler that wrote the traces, with versions if recorded. */
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
  /** What it costs per step, where that is more than can be saved. */
  readonly cost_ns: number | null;
  /** Of a symptom: why it is one. */
  readonly because: string;
  /** What is different without it, as options of `rankscope whatif`; empty where the run cannot tell. */
  readonly scenarios: readonly string[];
  /** Findings about the same time, which this one causes; their savings are not added. */
  readonly symptoms: readonly Finding[];
  /** The place that shows it best, from the server; null in a report, and while ranks are still compared. */
  readonly place: { readonly rank: number | null; readonly step: number | null; readonly event: FindingEvent | null } | null;
}

/** The event at which a finding can be seen, on the timeline's clock. */
export interface FindingEvent {
  readonly rank: number;
  readonly start_ns: number;
  readonly end_ns: number;
  readonly reason: string;
  /** Ranks to compare it with. */
  readonly peers: readonly number[];
  /** Where the idle gap begins that the event ends; null where it ends none. */
  readonly since_ns: number | null;
  /** What contains the event, its gap and the peers’. */
  readonly from_ns: number;
  readonly to_ns: number;
}

/** What the traces cannot tell, why, and what to record. */
export interface NotJudged {
  readonly what: string;
  readonly why: string;
  readonly record: string;
}

/** The run's diagnosis, made once in Python: what the headline, the cards and the findings agree on. */
export interface Diagnosis {
  readonly headline: Headline;
  readonly stragglers: {
    readonly state: "straggler" | "none" | "too-few-steps" | "one-rank" | "not-compared";
    /** The state in a few words. */
    readonly label: string;
    readonly ranks: readonly number[];
    readonly sentence: Headline;
    /** For which rank the others waited longest, as a clause: an indication, whatever the state. */
    readonly longest: Headline | null;
  };
  readonly saving_ns: number | null;
  readonly not_judged: readonly NotJudged[];
}

export interface Payload {
  readonly generatedBy: string;
  /** When the report was written; empty if unknown. */
  readonly generatedAt: string;
  readonly run: RunInfo;
  readonly analyses: ReadonlyMap<string, AnalysisPayload>;
  readonly findings: readonly Finding[];
  /** Null while the rules have not run, and in reports of former versions. */
  readonly diagnosis: Diagnosis | null;
  /** What of the payload could not be used, one sentence each; shown, never swallowed. */
  readonly problems: readonly string[];
}

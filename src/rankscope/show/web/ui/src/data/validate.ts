/** Turns the embedded text into a payload, or reports why it cannot. An invalid analysis is left out and named; the rest is shown. */
import {
  SCHEMA_VERSION, type AnalysisPayload, type Bars, type Cell, type Column, type Diagnosis, type Evidence, type Finding, type FindingEvent, type Headline, type Payload, type RunInfo,
  type Severity, type Truncation,
} from "./payload.ts";

/** Why there is nothing to show, with what to do about it. */
export class PayloadError extends Error {
  readonly advice: string;
  constructor(message: string, advice: string) {
    super(message);
    this.name = "PayloadError";
    this.advice = advice;
  }
}

type Json = Record<string, unknown>;

const REMAKE = "Regenerate the report with `rankscope report DIR -o report.html`.";

/**
 * @param text - the text of the data's block.
 * @param tables - the rows of tables that are elsewhere in the report, by analysis and column.
 */
export function parsePayload(text: string, tables: Readonly<Record<string, unknown>> = {}): Payload {
  if (text.trim() === "") throw new PayloadError("This report contains no data.", REMAKE);
  if (text.trimStart().startsWith("/*")) {
    throw new PayloadError("This file is an empty report template.", REMAKE);
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    const why = error instanceof Error ? error.message.slice(0, 200) : "unknown reason";
    throw new PayloadError(`The data of this report cannot be read: ${why}.`, `The file may have been truncated during a copy. ${REMAKE}`);
  }
  const analyses = isObject(json) && isObject(json["analyses"]) ? json["analyses"] : {};
  for (const [name, data] of Object.entries(tables)) {
    const analysis = Object.hasOwn(analyses, name) ? analyses[name] : undefined;
    if (isObject(analysis)) analysis["data"] = data;
  }
  return validatePayload(json);
}

export function validatePayload(json: unknown): Payload {
  if (!isObject(json)) throw new PayloadError("The data of this report is not an object.", REMAKE);
  const version = json["schema_version"];
  if (version !== SCHEMA_VERSION) {
    throw new PayloadError(
      `This page reads data of schema ${SCHEMA_VERSION}, but found ${version === undefined ? "none" : `schema ${String(version).slice(0, 20)}`}.`,
      `The page and the data come from different versions of rankscope. ${REMAKE}`,
    );
  }
  const problems: string[] = [];
  const analyses = new Map<string, AnalysisPayload>();
  for (const [name, raw] of Object.entries(isObject(json["analyses"]) ? json["analyses"] : {})) {
    const outcome = readAnalysis(name, raw);
    if (typeof outcome === "string") problems.push(`Analysis ${name} is not shown: ${outcome}.`);
    else analyses.set(name, outcome);
  }
  const findings: Finding[] = [];
  asList(json["findings"]).forEach((raw, index) => {
    const finding = readFinding(raw);
    if (finding) findings.push(finding);
    else problems.push(`Finding ${index + 1} is not shown: it has no title.`);
  });
  return { generatedBy: asText(json["generated_by"]) || "rankscope", generatedAt: asText(json["generated_at"]), run: readRun(json["run"]), analyses, findings, diagnosis: readDiagnosis(json["diagnosis"]), problems };
}

export function readRun(raw: unknown): RunInfo {
  const run = isObject(raw) ? raw : {};
  return {
    id: typeof run["id"] === "string" && run["id"] !== "" ? run["id"] : null,
    name: typeof run["name"] === "string" && run["name"] !== "" ? run["name"] : null,
    path: asText(run["path"]),
    command: Array.isArray(run["command"]) ? asTexts(run["command"]) : null,
    world_size: asNumber(run["world_size"]),
    ranks: asNumbers(run["ranks"]),
    missing_ranks: asNumbers(run["missing_ranks"]),
    hosts: asTexts(run["hosts"]),
    devices: asTexts(run["devices"]),
    steps: asNumbers(run["steps"]),
    written_by: asTexts(run["written_by"]),
  };
}

export function readAnalysis(name: string, raw: unknown): AnalysisPayload | string {
  if (!isObject(raw)) return "it is not an object";
  if (!isObject(raw["columns"])) return "it has no columns";
  if (!isObject(raw["data"])) return "it has no data";
  const columns: [string, Column][] = [];
  const data: [string, readonly Cell[]][] = [];
  let rows: number | null = null;
  for (const [column, about] of Object.entries(raw["columns"])) {
    const values = Object.hasOwn(raw["data"], column) ? raw["data"][column] : undefined;
    if (!Array.isArray(values)) return `column ${column} has no values`;
    rows ??= values.length;
    if (values.length !== rows) return `column ${column} has ${values.length} values where the first has ${rows}`;
    const meta = isObject(about) ? about : {};
    columns.push([column, { unit: asText(meta["unit"]), doc: asText(meta["doc"]), ...(meta["instant"] === true ? { instant: true } : {}) }]);
    data.push([column, values.map(asCell)]);
  }
  if (columns.length === 0) return "it has no columns";
  return {
    title: asText(raw["title"]) || name,
    doc: asText(raw["doc"]),
    headline: readHeadline(raw["headline"]),
    columns: Object.fromEntries(columns),
    data: Object.fromEntries(data),
    truncated: readTruncation(raw["truncated"]),
    charts: readCharts(raw["charts"], new Set(columns.map(([column]) => column))),
  };
}

/** Charts of columns that are there. */
function readCharts(raw: unknown, columns: ReadonlySet<string>): Bars[] {
  return asList(raw).filter(isObject).map((chart) => ({ name: asText(chart["name"]), value: asText(chart["value"]), title: asText(chart["title"]) }))
    .filter((chart) => columns.has(chart.name) && columns.has(chart.value));
}

function readTruncation(raw: unknown): Truncation | null {
  if (!isObject(raw)) return null;
  const [shown, total] = [asNumber(raw["shown"]), asNumber(raw["total"])];
  return shown === null || total === null ? null : { shown, total };
}

export function readHeadline(raw: unknown): Headline | null {
  if (!isObject(raw) || asText(raw["text"]) === "") return null;
  return { text: asText(raw["text"]), values: readEvidence(raw["values"]) };
}

function readEvidence(raw: unknown): Evidence[] {
  return asList(raw).filter(isObject).map((item) => ({ name: asText(item["name"]), value: asCell(item["value"]), unit: asText(item["unit"]) }));
}

export function readFinding(raw: unknown): Finding | null {
  if (!isObject(raw) || typeof raw["title"] !== "string" || raw["title"] === "") return null;
  const severity: Severity = raw["severity"] === "error" || raw["severity"] === "info" ? raw["severity"] : "warning";
  return {
    id: asText(raw["id"]),
    severity,
    title: raw["title"],
    ranks: asNumbers(raw["ranks"]),
    steps: asNumbers(raw["steps"]),
    evidence: readEvidence(raw["evidence"]),
    saving_ns: asNumber(raw["saving_ns"]),
    advice: asText(raw["advice"]),
    cost_ns: asNumber(raw["cost_ns"]),
    because: asText(raw["because"]),
    scenarios: asList(raw["scenarios"]).map(asText).filter((option) => option !== ""),
    symptoms: asList(raw["symptoms"]).map(readFinding).filter((finding): finding is Finding => finding !== null),
    place: isObject(raw["place"]) ? { rank: asNumber(raw["place"]["rank"]), step: asNumber(raw["place"]["step"]), event: readEvent(raw["place"]["event"]) } : null,
  };
}

function readEvent(raw: unknown): FindingEvent | null {
  if (!isObject(raw)) return null;
  const [rank, start_ns, end_ns, from_ns, to_ns] = ["rank", "start_ns", "end_ns", "from_ns", "to_ns"].map((name) => asNumber(raw[name]));
  if (rank == null || start_ns == null || end_ns == null || from_ns == null || to_ns == null) return null;
  const peers = asList(raw["peers"]).map(asNumber).filter((peer): peer is number => peer !== null);
  return { rank, start_ns, end_ns, since_ns: asNumber(raw["since_ns"]), from_ns, to_ns, reason: asText(raw["reason"]), peers };
}

const STATES = ["straggler", "none", "too-few-steps", "one-rank", "not-compared"] as const;

export function readDiagnosis(raw: unknown): Diagnosis | null {
  if (!isObject(raw)) return null;
  const [headline, about] = [readHeadline(raw["headline"]), isObject(raw["stragglers"]) ? raw["stragglers"] : {}];
  const [state, sentence] = [STATES.find((each) => each === about["state"]), readHeadline(about["sentence"])];
  if (!headline || !state || !sentence) return null;
  return {
    headline,
    stragglers: { state, label: asText(about["label"]), ranks: asNumbers(about["ranks"]), sentence, longest: readHeadline(about["longest"]) },
    saving_ns: asNumber(raw["saving_ns"]),
    not_judged: asList(raw["not_judged"]).filter(isObject).map((each) => ({ what: asText(each["what"]), why: asText(each["why"]), record: asText(each["record"]) })),
  };
}

function asCell(value: unknown): Cell {
  if (value === null || value === undefined) return null;
  if (typeof value === "number" || typeof value === "string" || typeof value === "boolean") return value;
  if (Array.isArray(value)) return value.map((item) => (typeof item === "number" ? item : String(item)));
  return JSON.stringify(value);
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function asList(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function asTexts(value: unknown): string[] {
  return asList(value).filter((item): item is string => typeof item === "string");
}

function asNumber(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function asNumbers(value: unknown): number[] {
  return asList(value).filter((item): item is number => typeof item === "number" && Number.isFinite(item));
}

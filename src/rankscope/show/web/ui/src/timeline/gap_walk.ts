/** All gaps of a row about idle time, the longest first: to the next and the previous one. */
import { button } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import type { Api } from "../data/api.ts";
import type { Table } from "../data/table.ts";
import { formatDuration, grouped } from "../format/units.ts";
import { isLive, type ViewContext } from "../views/view.ts";
import { ELSEWHERE } from "./anchor.ts";

/** The parameter that keeps which gap is shown: 0, which is the longest, without it. */
export const GAP = "gap";
const ANALYSIS = "idle";
/** Of the length of a gap, on either side. */
const ROOM = 1;

export interface Gaps {
  readonly starts: Float64Array;
  readonly ends: Float64Array;
  readonly idle: Float64Array;
  /** Of all gaps of the row, also of those that were not sent. */
  readonly count: number;
}

/** Whether a row's gaps can be walked: its link leads to the longest one. */
export function hasGaps(analysis: string, column: string): boolean {
  return analysis === ANALYSIS && column === "cause";
}

export async function gapsOf(api: Api, table: Table, row: number): Promise<Gaps> {
  const asked = Object.fromEntries(["rank", "device", "stream", "cause", "detail"].map((name) => [name, table.cell(row, name)] as const).filter(([, value]) => value !== null && value !== undefined));
  const file = await api.columns("gaps", asked as Record<string, string | number>);
  return { starts: file.f64("start_ns"), ends: file.f64("end_ns"), idle: file.f64("idle_ns"), count: Number(file.meta["count"]) };
}

/** The address of a gap: measured, or, of an operator's, its call selected. */
export function gapParams(table: Table, row: number, { starts, ends }: Gaps, index: number): Record<string, string> {
  const [start, end] = [starts[index] ?? 0, ends[index] ?? 0];
  const rank = String(table.cell(row, "rank"));
  const room = (end - start) * ROOM;
  const place = table.cell(row, "cause") === "operator" ? { ev: `${rank}_${start}_${end}` } : { m: `${start}_${end}` };
  return { ...ELSEWHERE, ...place, t: `${Math.floor(start - room)}_${Math.ceil(end + room)}`, rank, [GAP]: String(index) };
}

/** Which gap of the row is shown, and buttons to the others. */
export function gapWalk(context: ViewContext, table: Table, row: number, gaps: Gaps, index: number, walked: Readonly<Record<string, string>>): HTMLElement[] {
  const turn = (sign: string, label: string, testId: string, to: number): HTMLElement => {
    const there = to >= 0 && to < gaps.starts.length;
    return button({ class: "quiet", "aria-label": label, title: label, "data-testid": testId, ...(there ? {} : { "aria-disabled": "true" }) }, () => { if (there) context.router.update({ ...gapParams(table, row, gaps, to), ...walked }); }, sign);
  };
  const length = gaps.idle[index];
  return [
    h("span", { role: "status", "data-testid": "gap-which" }, `gap ${grouped(index + 1)} of ${grouped(gaps.count)} by length${length === undefined ? "" : `, ${formatDuration(length)}`}`),
    turn("◂", "Next longer gap", "gap-previous", index - 1), turn("▸", "Next shorter gap", "gap-next", index + 1),
  ];
}

/** Whether there is a server that has all gaps; a report has the longest of each row. */
export function servesGaps(context: ViewContext): boolean {
  return isLive(context.served);
}

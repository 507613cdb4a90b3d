/** Where the rows of a diff have their events, on either side. */
import { eventTime } from "../timeline/anchor.ts";
import type { Table } from "../data/table.ts";
import type { ViewContext } from "./view.ts";

/** A side of a diff: a run, and its only rank where two ranks are compared. */
export interface DiffPart {
  readonly run: string | null;
  readonly rank: number | null;
  /** The calls of its collectives; null where they are not needed. */
  readonly calls: Table | null;
}

export const MODULE_SECTIONS: ReadonlySet<string> = new Set(["modules_device", "modules_host"]);
/** What separates a module from those around it, and an operator from its module. */
const INSIDE = "/";
/** How pairs are found whose sides have one name each. */
const ONE_NAME: ReadonlySet<string> = new Set(["name", "other shapes", "alone"]);

/** The address of a row's events on a side; null where it has none there. */
export function eventsOn(context: ViewContext, table: Table, row: number, side: "a" | "b", part: DiffPart): string | null {
  if (table.number(row, side) === null || !((table.number(row, `${side}_calls`) ?? 0) > 0)) return null;
  const place = { ...(part.run === null ? {} : { run: part.run }), ...(part.rank === null ? {} : { rank: part.rank }) };
  const section = String(table.cell(row, "section"));
  if (section === "collectives") {
    const call = part.calls && longestCall(part.calls, table, row, part.rank);
    return call === null ? null : context.router.href("timeline", { ...place, ...call });
  }
  const name = MODULE_SECTIONS.has(section) ? moduleEvent(table, row) : section === "kernels" || section === "operators" ? nameOn(table, row, side) : null;
  return name === null ? null : context.router.href("timeline", { ...place, name });
}

/** A module's calls are Python frames; in what TorchScript records, only its operators are events. */
function moduleEvent(table: Table, row: number): string | null {
  const operator = table.cell(row, "operator");
  if (operator !== null) return String(operator);
  const module = String(table.cell(row, "name")).split(INSIDE).at(-1) ?? "";
  return module.includes("(") || module === "outside modules" ? null : `nn.Module: ${module}`;
}

function nameOn(table: Table, row: number, side: "a" | "b"): string | null {
  const name = (side === "b" ? table.cell(row, "partner") : null) ?? table.cell(row, "name");
  if (typeof name !== "string") return null;
  return ONE_NAME.has(String(table.cell(row, "method"))) ? name : firstName(name);
}

/** The first of several names that are joined by commas; commas within brackets belong to a name. */
export function firstName(names: string): string {
  let depth = 0;
  for (let at = 0; at < names.length; at++) {
    const mark = names[at]!;
    if ("<([{".includes(mark)) depth++;
    else if (">)]}".includes(mark)) depth--;
    else if (depth <= 0 && names.startsWith(", ", at)) return names.slice(0, at);
  }
  return names;
}

/** The longest call of a row's collective, or the one that waits longest. */
function longestCall(calls: Table, table: Table, row: number, rank: number | null): { ev: string; rank: number } | null {
  const name = /^(.+?)(?: of (\d+) ranks)?: (\w+)$/.exec(String(table.cell(row, "name")));
  if (!name) return null;
  const [, collective, size, what] = name;
  const shapes = table.cell(row, "shapes");
  const column = what === "wait" ? "wait_ns" : "duration_ns";
  let best: number | null = null;
  for (const call of calls.where("collective", collective ?? "")) {
    if (rank !== null && calls.number(call, "rank") !== rank) continue;
    if (size !== undefined && calls.number(call, "group_size") !== Number(size)) continue;
    const bytes = `${String(calls.cell(call, "bytes"))} bytes ${String(calls.cell(call, "dtype"))}`;
    if (shapes !== null && shapes !== bytes) continue;
    if (best === null || (calls.number(call, column) ?? -1) > (calls.number(best, column) ?? -1)) best = call;
  }
  const number = (of: string): number | null => (best === null ? null : calls.number(best, of));
  const [of, start, end] = [number("rank"), number("start_ns"), number("end_ns")];
  return of === null || start === null || end === null ? null : { ev: eventTime({ rank: of, start, end }), rank: of };
}

/** The call trees of a range (`api/calls`), from the lanes in a report: the same numbers as `primitives/call_tree.py`. */
import { ApiError, isCalls, type Calls } from "../api.ts";
import { ColumnFile } from "../column_file.ts";
import { nested } from "./nesting.ts";
import { touching, type RankEvents } from "./rank_events.ts";
import type { EmbeddedRun } from "./run.ts";

const [OPERATORS, CALLS, RANGES, FRAMES] = [1, 2, 3, 4];
const WANTED: Readonly<Record<Calls, { readonly kind: string; readonly tables: readonly number[] }>> = {
  operators: { kind: "thread", tables: [OPERATORS!, CALLS!, RANGES!] },
  frames: { kind: "python", tables: [FRAMES!] },
  modules: { kind: "python", tables: [FRAMES!] },
};
const MODULE = "nn.Module: ";
const MAX_NODES = 5_000;
const MAX_CELLS = 200_000;

interface Call { readonly start: number; readonly end: number; readonly name: number }
interface Cell { calls: number; self: number; total: number }
interface Node { readonly name: number; readonly parent: Node | null; readonly children: Map<number, Node>; readonly cells: Map<number, Cell>; place: number }

export async function callsOf(run: EmbeddedRun, from: number, to: number, by: string, ranks: ReadonlySet<number> | null): Promise<ColumnFile> {
  if (!isCalls(by)) throw new ApiError(400, "by must be operators, frames or modules.", "");
  const plans = run.plans.filter(({ rank }) => !ranks || ranks.has(rank)).sort((a, b) => a.rank - b.rank);
  const found: { rank: number; threads: Call[][] }[] = [];
  const numbers = new Set<number>();
  for (const plan of plans) {
    const threads = threadsOf(run, await run.rank(plan), by, from, to);
    for (const call of threads.flat()) numbers.add(call.name);
    found.push({ rank: plan.rank, threads });
  }
  const names: string[] = [];
  const spelled = new Map<string, number>();
  const code = new Map<number, number>();
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const text = run.head.names[number] ?? "";
    if (by === "modules" && !text.startsWith(MODULE)) continue;
    const shared = sharedName(text);
    if (!spelled.has(shared)) spelled.set(shared, names.push(shared) - 1);
    code.set(number, spelled.get(shared)!);
  }
  const top = node(-1, null);
  for (const { rank, threads } of found) for (const calls of threads) add(top, rank, calls, code);
  return written(top, names, { from_ns: from, to_ns: to, by, ranks: plans.map(({ rank }) => rank), left_out: [] });
}

/** Hashes, and what Triton knows of its arguments, as `primitives.hashed_names` has them. */
const HASHED = /(?<![A-Za-z0-9])(?:[a-z2-7]{50,52}|[A-Z2-7]{50,52}|[0-9a-f]{32,64})(?![A-Za-z0-9])|(?<=_)\d+(?:de?|c|e)(?:\d+(?:de?|c|e)?)+$/g;

/** Steps are one name; addresses of objects and the prefix of modules are left out, and hashes are `…`. */
export function sharedName(name: string): string {
  if (/^ProfilerStep#\d+$/.test(name)) return "ProfilerStep*";
  const bare = name.replace(/ at 0x[0-9a-fA-F]+/g, "");
  return (bare.startsWith(MODULE) ? bare.slice(MODULE.length) : bare).replace(HASHED, "…");
}

/** A rank's calls that touch the range, cut to it: by thread, in the order of lanes. */
function threadsOf(run: EmbeddedRun, events: RankEvents, by: Calls, from: number, to: number): Call[][] {
  const { kind, tables } = WANTED[by];
  const threads = new Map<number, Call[]>();
  events.lanes.forEach((lane, index) => {
    if (events.plan.kinds[index] !== kind) return;
    const track = events.plan.track[index]!;
    const calls = threads.get(track) ?? [];
    threads.set(track, calls);
    const { low, high } = touching(lane, from, to);
    for (let i = low; i < high; i++) {
      const which = lane.code[i]!;
      if (tables.includes(run.codes.table[which]!)) calls.push({ start: Math.max(lane.start[i]!, from), end: Math.min(lane.end[i]!, to), name: run.codes.name[which]! });
    }
  });
  return [...threads.values()];
}

/** Adds a thread's calls to the tree. */
function add(top: Node, rank: number, calls: readonly Call[], code: ReadonlyMap<number, number>): void {
  const nodes: Node[] = [];
  for (const { span, around, self } of nested(calls.filter(({ name }) => code.has(name)))) {
    const found = child(around >= 0 ? nodes[around]! : top, code.get(span.name)!);
    nodes.push(found);
    const cell = cellOf(found, rank);
    cell.calls += 1;
    cell.self += self;
    for (let outer: Node | null = found; outer && outer !== top; outer = outer.parent) cellOf(outer, rank).total += self;
  }
}

function node(name: number, parent: Node | null): Node {
  return { name, parent, children: new Map(), cells: new Map(), place: -1 };
}

function child(parent: Node, name: number): Node {
  let found = parent.children.get(name);
  if (!found) parent.children.set(name, found = node(name, parent));
  return found;
}

function cellOf(of: Node, rank: number): Cell {
  let found = of.cells.get(rank);
  if (!found) of.cells.set(rank, found = { calls: 0, self: 0, total: 0 });
  return found;
}

function written(top: Node, names: readonly string[], meta: { readonly ranks: readonly number[] } & Record<string, unknown>): ColumnFile {
  const every: Node[] = [];
  for (let level = [top]; level.length > 0;) {
    level = level.flatMap((each) => [...each.children.values()].sort((a, b) => a.name - b.name));
    every.push(...level);
  }
  const totals = new Map(every.map((each) => [each, sum(each, "total")]));
  const order = new Map(every.map((each, index) => [each, index]));
  const limit = Math.min(MAX_NODES, Math.floor(MAX_CELLS / Math.max(meta.ranks.length, 1)));
  const kept = [...every].sort((a, b) => totals.get(b)! - totals.get(a)! || order.get(a)! - order.get(b)!).slice(0, limit).sort((a, b) => order.get(a)! - order.get(b)!);
  kept.forEach((each, place) => { each.place = place; });
  const used = [...new Set(kept.map(({ name }) => name))].sort((a, b) => a - b);
  const index = new Map(used.map((name, place) => [name, place]));
  const cells = kept.flatMap((each) => [...each.cells].sort(([a], [b]) => a - b).map(([rank, cell]) => ({ place: each.place, rank, ...cell })));
  const all = (field: "calls" | "self"): number => every.reduce((total, each) => total + sum(each, field), 0);
  return new ColumnFile({
    meta: { ...meta, names: used.map((name) => names[name]!), nodes: every.length, self_ns: all("self"), calls: all("calls") },
    columns: {
      node_name: Uint32Array.from(kept, ({ name }) => index.get(name)!), node_parent: Int32Array.from(kept, ({ parent }) => parent?.place ?? -1),
      cell_node: Uint32Array.from(cells, ({ place }) => place), cell_rank: Uint32Array.from(cells, ({ rank }) => rank), cell_calls: Uint32Array.from(cells, ({ calls }) => calls),
      cell_self_ns: Float64Array.from(cells, ({ self }) => self), cell_total_ns: Float64Array.from(cells, ({ total }) => total),
    },
  });
}

function sum(of: Node, field: keyof Cell): number {
  let total = 0;
  for (const cell of of.cells.values()) total += cell[field];
  return total;
}

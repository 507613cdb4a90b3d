/**
 * Call trees as the page shows them: ranks added up, one side less another, inverted. Every time is a sum of the cells that
 * `api/calls` sent.
 */
import type { ColumnFile } from "../data/column_file.ts";

/** The trees of `api/calls`: nodes for all ranks, those around a node before it, and a cell for each node and rank. */
export interface Trees {
  readonly names: readonly string[];
  readonly name: Uint32Array;
  readonly parent: Int32Array;
  readonly cells: { readonly node: Uint32Array; readonly rank: Uint32Array; readonly calls: Uint32Array; readonly self: Float64Array; readonly total: Float64Array };
  readonly ranks: readonly number[];
  /** Ranks for which there was no room. */
  readonly leftOut: readonly number[];
  /** Of the complete trees: nodes, calls and self time. */
  readonly nodes: number;
  readonly calls: number;
  readonly self: number;
}

export function readTrees(file: ColumnFile): Trees {
  const { meta } = file;
  return {
    names: (meta["names"] as unknown[]).map(String), name: file.u32("node_name"), parent: file.i32("node_parent"),
    cells: { node: file.u32("cell_node"), rank: file.u32("cell_rank"), calls: file.u32("cell_calls"), self: file.f64("cell_self_ns"), total: file.f64("cell_total_ns") },
    ranks: (meta["ranks"] as unknown[]).map(Number), leftOut: (meta["left_out"] as unknown[]).map(Number),
    nodes: Number(meta["nodes"]), calls: Number(meta["calls"]), self: Number(meta["self_ns"]),
  };
}

export interface Side { calls: number; self: number; total: number }

export interface Node {
  readonly name: string;
  readonly around: Node | null;
  readonly depth: number;
  readonly inside: Node[];
  readonly own: Side;
  /** What is compared with; all 0 if nothing is. */
  readonly other: Side;
  /** Total time of each rank of the own side. */
  readonly ranks: Map<number, number>;
}

/** A part of what is shown: some ranks of a response, as a sum or as the mean of a rank. */
export interface Part { readonly trees: Trees; readonly ranks: ReadonlySet<number>; readonly mean: boolean }

/** The tree of a part, with another part beside it if there is one. The root has no name, and the time of all its nodes. */
export function treeOf(own: Part, other: Part | null): Node {
  const root = node("", null);
  add(root, own, "own");
  if (other) add(root, other, "other");
  for (const side of ["own", "other"] as const) root[side].total = root.inside.reduce((sum, each) => sum + each[side].total, 0);
  sort(root);
  return root;
}

/** The tree from the inside: the names, and inside each its callers; both times are self time of the name at the top. */
export function inverted(tree: Node): Node {
  const root = node("", null);
  const children = new Map<Node, Map<string, Node>>();
  for (const leaf of walk(tree)) {
    let to = root;
    for (let from: Node | null = leaf; from?.around; from = from.around) {
      to = child(children, to, from.name);
      for (const side of ["own", "other"] as const) {
        to[side].calls += leaf[side].calls;
        to[side].self += leaf[side].self;
        to[side].total += leaf[side].self;
      }
      for (const [rank] of leaf.ranks) to.ranks.set(rank, (to.ranks.get(rank) ?? 0) + selfOf(leaf, rank));
    }
  }
  for (const side of ["own", "other"] as const) root[side].total = root.inside.reduce((sum, each) => sum + each[side].total, 0);
  sort(root);
  return root;
}

/** How much more time a node has than what it is compared with. */
export function more(of: Node): number {
  return of.own.total - of.other.total;
}

/** What a node takes of the width: both sides, so that what only one has is there too. */
export function weight(of: Node): number {
  return of.own.total + of.other.total;
}

/** Every node below a root, each before those inside it. */
export function* walk(root: Node): Generator<Node> {
  const left = [...root.inside].reverse();
  for (let next = left.pop(); next; next = left.pop()) {
    yield next;
    for (let i = next.inside.length - 1; i >= 0; i--) left.push(next.inside[i]!);
  }
}

/** A node's path by name, outermost first. */
export function pathOf(of: Node): string[] {
  const path: string[] = [];
  for (let at: Node | null = of; at?.around; at = at.around) path.unshift(at.name);
  return path;
}

/** The same for an address: a few letters for each name. Empty for the root. */
export function focusOf(of: Node): string {
  return pathOf(of).map(hashOf).join(".");
}

/** The node that `focusOf` wrote; where it is not in the tree, the innermost one around it that is. */
export function atFocus(root: Node, focus: string): Node {
  let at = root;
  for (const hash of focus === "" ? [] : focus.split(".")) {
    const next = at.inside.find(({ name }) => hashOf(name) === hash);
    if (!next) return at;
    at = next;
  }
  return at;
}

/** FNV-1a of a name, 32 bits. */
function hashOf(name: string): string {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return (hash >>> 0).toString(36);
}

/** Total time of nodes that match and are in no other that does. */
export function matched(root: Node, matches: (name: string) => boolean): { readonly nodes: ReadonlySet<Node>; readonly time: number } {
  const nodes = new Set<Node>();
  const inside = new Set<Node>();
  let time = 0;
  for (const each of walk(root)) {
    const covered = each.around !== null && inside.has(each.around);
    const hit = matches(each.name);
    if (hit) nodes.add(each);
    if (hit && !covered) time += each.own.total;
    if (hit || covered) inside.add(each);
  }
  return { nodes, time };
}

/** A rank's self time: its total less that of the nodes inside. */
function selfOf(of: Node, rank: number): number {
  return of.inside.reduce((left, each) => left - (each.ranks.get(rank) ?? 0), of.ranks.get(rank) ?? 0);
}

function add(root: Node, { trees, ranks, mean }: Part, side: "own" | "other"): void {
  const children = new Map<Node, Map<string, Node>>();
  const share = mean ? Math.max(1, trees.ranks.filter((rank) => ranks.has(rank)).length) : 1;
  // Only paths that these ranks have: a cell's node and all around it.
  const nodes: (Node | undefined)[] = [];
  const place = (index: number): Node => nodes[index] ??= child(children, trees.parent[index]! < 0 ? root : place(trees.parent[index]!), trees.names[trees.name[index]!] ?? "");
  const { cells } = trees;
  for (let i = 0; i < cells.node.length; i++) {
    if (!ranks.has(cells.rank[i]!)) continue;
    const at = place(cells.node[i]!);
    at[side].calls += cells.calls[i]! / share;
    at[side].self += cells.self[i]! / share;
    at[side].total += cells.total[i]! / share;
    if (side === "own") at.ranks.set(cells.rank[i]!, cells.total[i]!);
  }
}

function child(children: Map<Node, Map<string, Node>>, around: Node, name: string): Node {
  let named = children.get(around);
  if (!named) children.set(around, named = new Map(around.inside.map((each) => [each.name, each])));
  let found = named.get(name);
  if (!found) {
    named.set(name, found = node(name, around));
    around.inside.push(found);
  }
  return found;
}

function node(name: string, around: Node | null): Node {
  return { name, around, depth: around ? around.depth + 1 : -1, inside: [], own: { calls: 0, self: 0, total: 0 }, other: { calls: 0, self: 0, total: 0 }, ranks: new Map() };
}

function sort(root: Node): void {
  const by = (a: Node, b: Node): number => weight(b) - weight(a) || (a.name < b.name ? -1 : 1);
  root.inside.sort(by);
  for (const each of walk(root)) each.inside.sort(by);
}

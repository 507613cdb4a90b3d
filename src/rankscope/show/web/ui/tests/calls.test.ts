import { expect, test } from "vitest";
import { boxesOf, ROW } from "../src/calls/flame.ts";
import { sameStep } from "../src/calls/other_run.ts";
import { FIRST, readChoice, writeChoice } from "../src/calls/choice.ts";
import { atFocus, focusOf, inverted, matched, more, pathOf, readTrees, treeOf, walk, weight, type Node, type Trees } from "../src/calls/tree.ts";
import { sentence, signOf } from "../src/calls/words.ts";
import { ColumnFile } from "../src/data/column_file.ts";
import { matcher } from "../src/format/pattern.ts";
import type { Layout } from "../src/timeline/layout.ts";

type Cell = readonly [node: number, rank: number, calls: number, self: number, total: number];

function trees(names: readonly string[], nodes: readonly (readonly [name: number, parent: number])[], cells: readonly Cell[]): Trees {
  const ranks = [...new Set(cells.map(([, rank]) => rank))].sort();
  return readTrees(new ColumnFile({
    meta: { names, ranks, left_out: [], nodes: nodes.length, calls: 0, self_ns: 0 },
    columns: {
      node_name: Uint32Array.from(nodes, ([name]) => name), node_parent: Int32Array.from(nodes, ([, parent]) => parent),
      cell_node: Uint32Array.from(cells, ([node]) => node), cell_rank: Uint32Array.from(cells, ([, rank]) => rank), cell_calls: Uint32Array.from(cells, ([, , calls]) => calls),
      cell_self_ns: Float64Array.from(cells, (cell) => cell[3]), cell_total_ns: Float64Array.from(cells, (cell) => cell[4]),
    },
  }));
}

// step { mm { launch }, add }, on rank 1 mm is 40 longer and there is a wait.
const TWO = trees(["step", "mm", "launch", "add", "wait"], [[0, -1], [1, 0], [2, 1], [3, 0], [4, 0]], [
  [0, 0, 1, 50, 100], [0, 1, 1, 50, 160], [1, 0, 2, 20, 30], [1, 1, 2, 60, 70], [2, 0, 2, 10, 10], [2, 1, 2, 10, 10], [3, 0, 1, 20, 20], [3, 1, 1, 20, 20], [4, 1, 1, 20, 20],
]);
const part = (ranks: readonly number[], mean = false) => ({ trees: TWO, ranks: new Set(ranks), mean });
const atPath = (root: Node, path: readonly string[]) => [...walk(root)].find((node) => pathOf(node).join("/") === path.join("/"))!;
const shown = (root: Node) => Object.fromEntries([...walk(root)].map((node) => [pathOf(node).join("/"), [node.own.self, node.own.total, more(node)]]));

test("ranks are added up", () => {
  const root = treeOf(part([0, 1]), null);
  expect(shown(root)).toEqual({ step: [100, 260, 260], "step/mm": [80, 100, 100], "step/mm/launch": [20, 20, 20], "step/add": [40, 40, 40], "step/wait": [20, 20, 20] });
  expect(root.own.total).toBe(260);
  expect([...root.inside[0]!.ranks]).toEqual([[0, 100], [1, 160]]);
  expect(shown(treeOf(part([0]), null))["step/wait"]).toBeUndefined();
});

test("a rank is compared with the mean of others", () => {
  const root = treeOf(part([1], true), part([0, 1], true));
  expect(shown(root)).toEqual({ step: [50, 160, 30], "step/mm": [60, 70, 20], "step/mm/launch": [10, 10, 0], "step/add": [20, 20, 0], "step/wait": [20, 20, 10] });
  const signs = Object.fromEntries([...walk(treeOf(part([0], true), part([1], true)))].map((node) => [node.name, signOf(node)]));
  expect(signs).toEqual({ step: "less", mm: "less", launch: "same", add: "same", wait: "less" });
});

test("inverted, each name has its callers and self time counts", () => {
  const root = inverted(treeOf(part([0, 1]), null));
  expect(shown(root)).toEqual({
    step: [100, 100, 100], mm: [80, 80, 80], "mm/step": [80, 80, 80], add: [40, 40, 40], "add/step": [40, 40, 40],
    launch: [20, 20, 20], "launch/mm": [20, 20, 20], "launch/mm/step": [20, 20, 20], wait: [20, 20, 20], "wait/step": [20, 20, 20],
  });
  expect(root.own.total).toBe(260);
  expect([...atPath(root, ["mm"]).ranks]).toEqual([[0, 20], [1, 60]]);
});

test("boxes fill the width by time, with callers over all of it", () => {
  const root = treeOf(part([0]), null);
  const boxes = (focus: Node) => boxesOf(focus, 1000).map(({ node, x, y, width, outer }) => [node.name, x, y / ROW, Math.round(10 * width) / 10, outer]);
  expect(boxes(root)).toEqual([["step", 0, 0, 1000, false], ["mm", 0, 1, 300, false], ["launch", 0, 2, 100, false], ["add", 300, 1, 200, false]]);
  expect(boxes(atPath(root, ["step", "mm"]))).toEqual([["step", 0, 0, 1000, true], ["mm", 0, 1, 1000, false], ["launch", 0, 2, 333.3, false]]);
  // Of both sides, so that what only one of them has is there.
  const both = treeOf(part([0], true), part([1], true));
  expect(boxesOf(both, 260).map(({ node, width }) => [node.name, Math.round(width)])).toContainEqual(["wait", 20]);
  expect(weight(atPath(both, ["step"]))).toBe(260);
});

test("a link has the focus and the search, whatever letters they have", () => {
  const root = treeOf(part([0, 1]), null);
  for (const node of [root, ...walk(root)]) expect(atFocus(root, focusOf(node))).toBe(node);
  // In a tree without that call: the innermost one around it.
  const short = treeOf({ trees: trees(["step"], [[0, -1]], [[0, 0, 1, 50, 50]]), ranks: new Set([0]), mean: false }, null);
  expect(atFocus(short, focusOf(atPath(root, ["step", "mm"]))).name).toBe("step");
  for (const choice of [FIRST, { ...FIRST, inverted: true, find: "slow_loader_" }, { ...FIRST, rank: 1, against: "others" as const, focus: focusOf(atPath(root, ["step", "mm", "launch"])), find: "/^a_|b.c&=%/" }]) {
    expect(readChoice(writeChoice(choice))).toEqual(choice);
  }
  expect(writeChoice({ ...FIRST, rank: 1, against: { rank: 0 } })).toBe("flame_operators_1_0");
  expect(readChoice("flame_operators_all_none__A!")).toEqual(FIRST);
});

test("what matches is counted once where it is nested", () => {
  const root = treeOf(part([0]), null);
  const found = matched(root, matcher("/mm|launch/")!);
  expect([found.nodes.size, found.time]).toEqual([2, 30]);
  expect(matcher("  ")).toBeNull();
  expect(matcher("/(/")).toBeNull();
});

test("a node is described in words, its name as text", () => {
  const node = atPath(treeOf(part([1], true), part([0], true)), ["step", "mm"]);
  expect(sentence(node, 160, "rank 0")).toMatch(/^mm: total 70.ns .*, self 60.ns, 2 calls · \+40.ns compared with rank 0 \(30.ns\)$/);
  const hostile = treeOf({ trees: trees(["a\u202eb<img src=x>"], [[0, -1]], [[0, 0, 1, 5, 5]]), ranks: new Set([0]), mean: false }, null);
  expect(sentence(hostile.inside[0]!, 5, null)).not.toContain("\u202e");
});

test("a step of one run is the step of the same number in another", () => {
  const layout = (from: number, length: number): Layout => ({ ranks: [{ steps: [{ step: 3, start: from, end: from + length }, { step: 4, start: from + length, end: from + 2 * length }] }] } as unknown as Layout);
  expect(sameStep(layout(100, 50), layout(1000, 80), { from: 150, to: 200 })).toEqual({ from: 1080, to: 1160 });
  expect(sameStep(layout(100, 50), layout(1000, 80), { from: 110, to: 130 })).toEqual({ from: 1010, to: 1030 });
  expect(sameStep(layout(100, 50), layout(1000, 80), { from: 0, to: 50 })).toBeNull();
});

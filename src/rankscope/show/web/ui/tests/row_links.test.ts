import { expect, test } from "vitest";
import { eventParamsOf, linkColumn } from "../src/components/event_link.ts";
import { leftRows, readWalk, rowsToWalk, walkParams } from "../src/components/row_walk.ts";
import type { Cell } from "../src/data/payload.ts";
import { Table } from "../src/data/table.ts";

const make = (data: Record<string, Cell[]>): Table =>
  new Table({ title: "", doc: "", truncated: null, data, columns: Object.fromEntries(Object.keys(data).map((name) => [name, { unit: "", doc: "" }])) });

test("an idle row leads to its longest gap, and one of an operator to the call that has it", () => {
  const table = make({ rank: [3, 3], window: [1, 1], stream: [null, 7], cause: ["operator", "host_wait"], detail: ["aten::to", null], max_ns: [500, 40], longest_start_ns: [1200, 90] });
  expect(eventParamsOf("idle", table, 0, "cause")).toEqual({ ev: "3_1200_1000000001200", rank: 3 });
  expect(eventParamsOf("idle", table, 0, "detail")).toEqual({ name: "aten::to", rank: 3 });
  expect(eventParamsOf("idle", table, 1, "cause")).toEqual({ range: "3_90_130", rank: 3 });
  expect(eventParamsOf("idle", table, 1, "detail")).toBeNull();
  expect(linkColumn("idle", table, 1)).toBe("cause");
});

test("compiled code leads to the events whose names a row has in part", () => {
  const kinds = ["region", "graph", "break", "compiling", "step"];
  const names = ["Torch-Compiled Region: 0/1", "fab3", "forward line 12", "backend(x)", "ProfilerStep"];
  const table = make({ rank: kinds.map(() => 0), kind: kinds, name: names });
  const found = kinds.map((_, row) => String(eventParamsOf("compile", table, row, "name")?.["name"]));
  expect(found[0]).toBe("Torch-Compiled Region: 0/1");
  const matches = (row: number, event: string): boolean => new RegExp(found[row]!.slice(1, -1)).test(event);
  expect([matches(1, "## Call CompiledFxGraph fab3 ##"), matches(1, "## Call CompiledFxGraph xfab3 ##")]).toEqual([true, false]);
  expect([matches(2, "model.py(3): torch_dynamo_resume_in_forward_at_12"), matches(2, "torch_dynamo_resume_in_forwards_at_12")]).toEqual([true, false]);
  expect([matches(3, "backend(x)"), matches(3, "backend(x) (dynamo_timed)"), matches(3, "backend(x) more")]).toEqual([true, true, false]);
  expect(matches(4, "ProfilerStep#7")).toBe(true);
});

test("rows about groups of ranks lead to these ranks", () => {
  const table = make({ dimension: ["dp", "dp", "host", "pp"], label: ["dp=1", null, "host=node-3.x", "dp=1 tp=0"] });
  expect(eventParamsOf("mesh", table, 0, "label")).toEqual({ group: "dp", groups: "0-999", lanes: "/\\bdp=1\\b/" });
  expect(eventParamsOf("mesh", table, 1, "label")).toEqual({ group: "dp" });
  expect(eventParamsOf("mesh", table, 2, "label")?.["lanes"]).toBe("/\\bnode-3\\.x\\b/");
  const of = new RegExp(String(eventParamsOf("mesh", table, 3, "label")?.["lanes"]).slice(1, -1));
  expect(["rank 3 dp=1, tp=0, pp=1", "rank 3 pp=1, tp=0, dp=1", "rank 3 dp=10, tp=0", "rank 3 dp=1, tp=1"].map((text) => of.test(text))).toEqual([true, true, false, false]);
  expect(eventParamsOf("pipeline_bubble", make({ stage: [0], step: [10] }), 0, "stage")).toEqual({ group: "pp", groups: "0-999", lanes: "/\\bpp=0\\b/", step: 10 });
});

test("a module of a path and a call site are events by name; a table without links has none", () => {
  const table = make({ rank: [0, 0], module: ["Net_0/Block_1", null], call_site: ["model.py(6): forward", null] });
  expect(eventParamsOf("memory_by_module", table, 0, "module")).toEqual({ name: "nn.Module: Block_1", rank: 0 });
  expect(linkColumn("memory_by_module", table, 1)).toBeNull();
  expect(eventParamsOf("memory_by_site", table, 0, "call_site")).toEqual({ name: "model.py(6): forward", rank: 0 });
  expect(linkColumn("utilization", table, 0)).toBeNull();
});

test("rows are walked as the table showed them, else in the order of the address", () => {
  const table = make({ rank: [0, 0, 0], idle_ns: [5, 9, 7] });
  const walked = readWalk("idle.1.cause")!;
  expect(walked).toEqual({ analysis: "idle", row: 1, column: "cause" });
  expect(rowsToWalk(table, walked, new Map([["idle.sort", "-idle_ns"]]))).toEqual([1, 2, 0]);
  expect(rowsToWalk(table, walked, new Map([["idle.sort", "-nothing"]]))).toEqual([0, 1, 2]);
  const shown = { rows: [1, 2], sort: { column: "idle_ns", descending: true }, query: "host" };
  expect(walkParams("idle", 1, "cause", shown)).toEqual({ row: "idle.1.cause", "idle.sort": "-idle_ns", "idle.q": "host" });
  leftRows("idle", table, [2, 1]);
  expect(rowsToWalk(table, walked, new Map())).toEqual([2, 1]);
  expect(readWalk("idle")).toBeNull();
});

import { describe, expect, test } from "vitest";
import type { Cell } from "../src/data/payload.ts";
import { Table } from "../src/data/table.ts";
import { inOrder } from "../src/components/by_step.ts";
import { columnOrder, columnWidths, label } from "../src/components/table_layout.ts";

const make = (data: Record<string, Cell[]>, units: Record<string, string> = {}): Table =>
  new Table({ title: "", doc: "", truncated: null, data, columns: Object.fromEntries(Object.keys(data).map((name) => [name, { unit: units[name] ?? "", doc: "" }])) });

describe("order", () => {
  const table = make({ rank: [0, 1, 2, 3], total_ns: [5, null, 100, 5], name: ["b", "A", "c", "a"] }, { total_ns: "ns" });
  test("numbers as numbers, what is not known last in both directions, ties as they came", () => {
    expect(table.sorted(table.rows(), { column: "total_ns", descending: false })).toEqual([0, 3, 2, 1]);
    expect(table.sorted(table.rows(), { column: "total_ns", descending: true })).toEqual([2, 0, 3, 1]);
  });
  test("names without regard to case", () => {
    expect(table.sorted(table.rows(), { column: "name", descending: false })).toEqual([1, 3, 0, 2]);
  });
  test("numbers within names as numbers", () => {
    const groups = make({ group: ["dp 10", "dp 2", "DP 1"] });
    expect(groups.sorted(groups.rows(), { column: "group", descending: false })).toEqual([2, 1, 0]);
  });
  test("an unknown column changes nothing", () => {
    expect(table.sorted([2, 0], { column: "__proto__", descending: false })).toEqual([2, 0]);
    expect(table.has("toString")).toBe(false);
  });
});

describe("steps", () => {
  test("by their number, whatever each window's clock says", () => {
    const table = make({ window: [0, 1, 2, 3], step: [10, 6, 2, 7], start_ns: [1, 2, 3, 4] });
    expect(inOrder(table, table.rows())).toEqual([2, 1, 3, 0]);
  });
  test("by window where each begins with the same number", () => {
    const table = make({ window: [1, 1, 0, 0], step: [1, 0, 1, 0] });
    expect(inOrder(table, table.rows())).toEqual([3, 2, 1, 0]);
  });
});

describe("filter", () => {
  const table = make({ rank: [0, 12, 2], name: ["ncclAllReduce", "gemm", "ncclAllGather"], total_ns: [12, 3, 4] }, { total_ns: "ns" });
  test("every word counts, case aside", () => {
    expect(table.matching(table.rows(), "NCCL gather")).toEqual([2]);
    expect(table.matching(table.rows(), "  ")).toEqual([0, 1, 2]);
  });
  test("ranks are found, durations are not", () => expect(table.matching(table.rows(), "12")).toEqual([1]));
});

describe("the order of columns", () => {
  const stack = "f".repeat(80);
  const long = make({ rank: [0], name: [stack], shapes: [null], stack: [stack], calls: [1], host_ns: [2], device_ns: [3] }, { calls: "count", host_ns: "ns", device_ns: "ns" });
  test("what holds no value comes last", () => {
    expect(columnOrder(long, [0], null)).toEqual(["rank", "name", "stack", "calls", "host_ns", "device_ns", "shapes"]);
  });
  test("what it is sorted by is in sight, beside the name", () => {
    expect(columnOrder(long, [0], "device_ns")).toEqual(["rank", "name", "device_ns", "stack", "calls", "host_ns", "shapes"]);
    const short = make({ rank: [0], name: ["k"], calls: [1], total_ns: [3] }, { calls: "count", total_ns: "ns" });
    expect(columnOrder(short, [0], "total_ns")).toEqual(["rank", "name", "calls", "total_ns"]);
    expect(columnOrder(short, [0], "no such column")).toEqual(["rank", "name", "calls", "total_ns"]);
  });
});

test("distinct values, numbers in order", () => {
  expect(make({ step: [12, 10, 12, 11] }).distinct("step")).toEqual([10, 11, 12]);
  expect(make({ step: [null, null] }).distinct("step")).toEqual([null]);
});

test("100,000 rows are filtered and sorted in well under a second", () => {
  const rows = 100_000;
  const table = make({ name: Array.from({ length: rows }, (_, i) => `kernel_${i % 977}`), total_ns: Array.from({ length: rows }, (_, i) => (i * 7919) % 100_003) }, { total_ns: "ns" });
  const took = Array.from({ length: 5 }, () => {
    const start = performance.now();
    const found = table.sorted(table.matching(table.rows(), "kernel_9"), { column: "total_ns", descending: true });
    expect(found.length).toBeGreaterThan(1000);
    return performance.now() - start;
  });
  expect(Math.min(...took)).toBeLessThan(3000); // the least, and generous: shared machines
});

test("columns have a width of their own, and two that differ in the unit alone differ in words", () => {
  const table = make({ window: [0], window_ns: [36_000_000], name: ["x".repeat(500)] }, { window_ns: "ns" });
  expect(label(table, "window")).toBe("Window");
  expect(label(table, "window_ns")).toBe("Window time");
  expect(Math.max(...columnWidths(table, table.rows()))).toBeLessThan(64);
});

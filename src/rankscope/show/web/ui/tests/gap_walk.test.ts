import { expect, test } from "vitest";
import { ColumnFile } from "../src/data/column_file.ts";
import type { Cell } from "../src/data/payload.ts";
import { Table } from "../src/data/table.ts";
import { readAddress } from "../src/timeline/address.ts";
import { gapParams, gapsOf, hasGaps } from "../src/timeline/gap_walk.ts";
import { columnFile } from "./column_file.ts";

const data: Record<string, Cell[]> = { rank: [3, 3], device: [0, 0], stream: [null, 7], cause: ["operator", "host_wait"], detail: ["aten::to", null], gaps: [2, 2] };
const table = new Table({ title: "", doc: "", truncated: null, data, columns: Object.fromEntries(Object.keys(data).map((name) => [name, { unit: "", doc: "" }])) });
const gaps = { starts: Float64Array.of(5000, 100), ends: Float64Array.of(7000, 600), idle: Float64Array.of(2000, 400), count: 2 };

test("only the causes of idle rows have gaps to walk", () => {
  expect([hasGaps("idle", "cause"), hasGaps("idle", "detail"), hasGaps("kernels", "name")]).toEqual([true, false, false]);
});

test("a gap is measured with what is around it, an operator's call is selected", () => {
  const of = (row: number, index: number): ReturnType<typeof readAddress> => readAddress(new Map(Object.entries(gapParams(table, row, gaps, index)).filter(([, value]) => value !== "")));
  expect(of(1, 1)).toMatchObject({ measured: { from: 100, to: 600 }, window: { from: -400, to: 1100 }, rank: 3, event: null });
  expect(of(0, 0)).toMatchObject({ measured: null, window: { from: 3000, to: 9000 }, rank: 3, event: { rank: 3, start: 5000, end: 7000 } });
  expect(gapParams(table, 1, gaps, 1)["gap"]).toBe("1");
});

test("what identifies a row is sent, and nothing for what it has not", async () => {
  const asked: unknown[] = [];
  const api = { run: null, json: () => Promise.reject(new Error("not asked")), columns: (name: string, params: unknown) => {
    asked.push([name, params]);
    return Promise.resolve(new ColumnFile(columnFile({ count: 9 }, { start_ns: gaps.starts, end_ns: gaps.ends, idle_ns: gaps.idle })));
  } };
  expect((await gapsOf(api, table, 1)).count).toBe(9);
  await gapsOf(api, table, 0);
  expect(asked).toEqual([["gaps", { rank: 3, device: 0, stream: 7, cause: "host_wait" }], ["gaps", { rank: 3, device: 0, cause: "operator", detail: "aten::to" }]]);
});

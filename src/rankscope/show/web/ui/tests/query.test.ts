import { describe, expect, test } from "vitest";
import { readChart, readQuery, readSaved, writeQuery, writeSaved } from "../src/query/address.ts";

describe("a query in the address", () => {
  test("comes back as it was, and defaults are left out", () => {
    const query = { sql: "SELECT 'a=b&c' -- 100 %", limit: 10_000 };
    expect(readQuery(new Map(Object.entries(writeQuery(query, 1000))), 1000)).toEqual(query);
    expect(writeQuery({ sql: "SELECT 1", limit: 1000 }, 1000)).toEqual({ sql: "SELECT 1", limit: "" });
  });

  test("is none where there is no text, and a wrong limit is the default", () => {
    expect(readQuery(new Map([["sql", "  "]]), 1000)).toBeNull();
    for (const limit of ["-1", "x", "1.5", "0"]) expect(readQuery(new Map([["sql", "SELECT 1"], ["limit", limit]]), 1000)?.limit).toBe(1000);
  });

  test("has saved ones, and damaged text has none", () => {
    const saved = [{ name: "a", sql: "SELECT 1" }, { name: "b", sql: "SELECT 2" }];
    expect(readSaved(writeSaved(saved))).toEqual(saved);
    for (const text of [undefined, "", "{", "{}", "[1]", '[["only a name"]]', "null"]) expect(readSaved(text)).toEqual([]);
    expect(writeSaved([])).toBe("");
  });

  test("has a chart only of columns that the rows have", () => {
    const params = new Map([["x", "name"], ["y", "total_ns"], ["chart", "pie"]]);
    expect(readChart(params, ["name", "total_ns"], ["total_ns"])).toEqual({ x: "name", y: "total_ns", kind: "bars" });
    expect(readChart(params, ["name", "other"], ["other"])).toBeNull();
  });
});

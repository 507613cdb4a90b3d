import { expect, test } from "vitest";
import { csvField, csvFileName, toCsv } from "../src/format/csv.ts";
import { Table } from "../src/data/table.ts";

test.each(["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "＝1"])("a text that a spreadsheet would run is disarmed: %j", (text) => {
  expect(csvField(text).replace(/^"/, "").startsWith("'")).toBe(true);
});

test("numbers are exact and never disarmed", () => {
  expect(csvField(-5)).toBe("-5");
  expect(csvField(9_007_199_254_740_991)).toBe("9007199254740991");
  expect(csvField(null)).toBe("");
  expect(csvField([0, 1])).toBe("0 1");
});

test("quotes, commas and line ends are kept inside their field", () => {
  expect(csvField('a"b,c\nd')).toBe('"a""b,c\nd"');
  expect(csvField("plain")).toBe("plain");
});

test("a table in the order of its rows", () => {
  const table = new Table({ title: "t", doc: "", truncated: null, columns: { name: { unit: "", doc: "" }, total_ns: { unit: "ns", doc: "" } }, data: { name: ["a", "=b"], total_ns: [1, 2] } });
  expect(toCsv(table, [1, 0])).toBe("name,total_ns\r\n'=b,2\r\na,1\r\n");
});

test("file names hold nothing that a file system or a shell reads", () => {
  expect(csvFileName("../../etc/<x>", "kernels")).toBe("rankscope_etc_x__kernels.csv");
  expect(csvFileName("", "kernels")).toBe("rankscope_kernels.csv");
});

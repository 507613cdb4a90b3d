import { expect, test } from "vitest";
import { ColumnFile } from "../src/data/column_file.ts";
import { columnFile } from "./column_file.ts";

const good = (): ArrayBuffer => columnFile({ level: 3, note: "é\u2028" }, { a: new Uint32Array([1, 2, 4294967295]), b: new Uint8Array([7]), c: new Float64Array([1.5, 2 ** 52 + 1]) });

test("columns come back as they were written, and the rest of the header with them", () => {
  const file = new ColumnFile(good());
  expect([...file.u32("a")]).toEqual([1, 2, 4294967295]);
  expect([...file.u8("b")]).toEqual([7]);
  expect([...file.f64("c")]).toEqual([1.5, 2 ** 52 + 1]);
  expect(file.meta["level"]).toBe(3);
  expect(file.meta["note"]).toBe("é\u2028");
});

test("an empty column is a column", () => {
  expect(new ColumnFile(columnFile({}, { a: new Uint32Array(0) })).u32("a")).toHaveLength(0);
});

test.each([
  ["cut short", (buffer: ArrayBuffer) => buffer.slice(0, buffer.byteLength - 8)],
  ["cut in its header", (buffer: ArrayBuffer) => buffer.slice(0, 24)],
  ["empty", () => new ArrayBuffer(0)],
  ["something else", () => new TextEncoder().encode("<!doctype html>  ").buffer as ArrayBuffer],
])("a file that is %s is refused", (_why, broken) => {
  expect(() => new ColumnFile(broken(good()))).toThrow();
});

test("a column that lies outside of the file, at an odd place or of an unknown type is refused", () => {
  for (const column of [{ type: "u32", offset: 0, length: 1e9 }, { type: "f64", offset: 4, length: 1 }, { type: "u32", offset: -8, length: 1 }, { type: "i64", offset: 0, length: 1 }, { type: "constructor", offset: 0, length: 0 }]) {
    let text = JSON.stringify({ columns: { a: column } });
    text += " ".repeat((8 - ((8 + text.length) % 8)) % 8);
    const file = new Uint8Array(8 + text.length + 64);
    file.set(new TextEncoder().encode("RSC1"));
    new DataView(file.buffer).setUint32(4, text.length, true);
    file.set(new TextEncoder().encode(text), 8);
    expect(() => new ColumnFile(file.buffer), JSON.stringify(column)).toThrow();
  }
});

test("a column of another type than asked for, or one that is not there, is refused", () => {
  const file = new ColumnFile(good());
  expect(() => file.f64("a")).toThrow();
  expect(() => file.u32("nothing")).toThrow();
});

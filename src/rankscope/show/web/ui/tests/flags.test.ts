import { expect, test } from "vitest";
import { readFlags, withFlag, writeFlags } from "../src/timeline/flags.ts";

test("flags keep their order, are changed and removed", () => {
  let flags = withFlag(withFlag([], 500, "b"), 100, "a");
  expect(flags.map(({ text }) => text)).toEqual(["a", "b"]);
  flags = withFlag(flags, 500, "c");
  expect(flags).toEqual([{ at: 100, text: "a" }, { at: 500, text: "c" }]);
  expect(withFlag(flags, 100, null)).toEqual([{ at: 500, text: "c" }]);
});

test("what is no flag in an address is left out", () => {
  expect(readFlags("x~a!5~%ZZ!7!1e9~b!")).toEqual([{ at: 5, text: "" }, { at: 7, text: "" }]);
  expect(readFlags(writeFlags([{ at: 3, text: "a".repeat(500) }]))[0]!.text).toHaveLength(200);
});

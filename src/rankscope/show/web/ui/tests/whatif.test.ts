import { expect, test } from "vitest";
import { findingOf, optionsUpTo, placedRows } from "../src/components/waterfall.ts";
import type { Finding } from "../src/data/payload.ts";
import { Table } from "../src/data/table.ts";
import { embeddedAnswer, fixedBy, fixOption, normal, numbersIn, optionOf, optionsIn, type EmbeddedAnswers } from "../src/data/whatif.ts";

test("options are taken apart as the command writes them", () => {
  expect(optionOf("whatif RUN --fix rank=3")).toBe("--fix rank=3");
  expect(optionsIn("--fix rank=3  --fix rank=5:host --network 2x --overlap")).toEqual(["--fix rank=3", "--fix rank=5:host", "--network 2x", "--overlap"]);
  expect(optionsIn("")).toEqual([]);
});

test("ranks are read from an option and written into one", () => {
  expect(fixedBy("--fix rank=5,1-2:host")).toEqual({ ranks: [1, 2, 5], component: "host" });
  expect(fixOption({ ranks: [5, 1], component: "" })).toBe("--fix rank=1,5");
  for (const other of ["--fix group=0,1", "--overlap", "--fix rank=3@10"]) expect(fixedBy(other)).toBeNull();
});

test("numbers that a reader types are bounded", () => {
  expect(numbersIn("3, 1-2,x,,9-7")).toEqual([1, 2, 3]);
  expect(numbersIn("0-9999999").length).toBe(4096);
});

test("the same scenarios have one way of writing", () => {
  expect(normal(["--overlap", "--fix rank=5", "--fix rank=3", "--overlap"])).toEqual(["--fix rank=3,5", "--overlap"]);
  expect(normal(["--fix rank=3:host", "--fix rank=3"])).toEqual(["--fix rank=3", "--fix rank=3:host"]);
});

test("a report answers what it has, in any order, and nothing else", () => {
  const first = { options: [], names: [], step_ns: 9, recorded_ns: 10, replayed: null };
  const answers = [first, { options: ["--fix rank=3", "--fix rank=5"], names: ["a", "b"], step_ns: 7, replayed: null }] as unknown as EmbeddedAnswers;
  expect(embeddedAnswer(answers, ["--fix rank=5", "--fix rank=3"])).toMatchObject({ step_ns: 7, recorded_ns: 10 });
  expect(embeddedAnswer(answers, [])).toMatchObject({ step_ns: 9 });
  expect(embeddedAnswer(answers, ["--fix rank=5"])).toBeNull();
});

const column = { unit: "", doc: "" };
const table = new Table({
  title: "", doc: "", truncated: null, columns: { order: column, command: column },
  data: { order: [0, 2, null, 1], command: [null, "whatif RUN --overlap", "whatif RUN --no-copies", "whatif RUN --fix rank=3"] },
});

test("a bar has the changes of all bars up to it", () => {
  const rows = placedRows(table);
  expect(rows).toEqual([3, 1]);
  expect(optionsUpTo(table, rows, 0)).toBe("--fix rank=3");
  expect(optionsUpTo(table, rows, 1)).toBe("--fix rank=3 --overlap");
});

test("a change leads to the finding whose scenario it is", () => {
  const found = [["--no-launches", "--no-allocation"], ["--fix rank=5"], ["--fix rank=3"], ["--no-allocation"], []].map((scenarios) => ({ scenarios } as unknown as Finding));
  expect(findingOf(found, "--fix rank=3")).toBe(found[2]);
  expect(findingOf(found, "--fix rank=3,4")).toBe(found[2]); // fixed together
  expect(findingOf(found, "--no-launches")).toBe(found[0]);
  expect(findingOf(found, "--no-allocation")).toBe(found[3]); // about nothing else
  expect(findingOf(found, "--fix rank=4")).toBeUndefined();
  expect(findingOf(found, "--no-copies")).toBeUndefined();
});

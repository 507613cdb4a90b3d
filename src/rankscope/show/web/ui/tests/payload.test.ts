import { describe, expect, test } from "vitest";
import { parsePayload, PayloadError, validatePayload } from "../src/data/validate.ts";
import { shortTitle } from "../src/format/text.ts";
import { homeOf, viewOf, viewsOf } from "../src/views/registry.ts";
import type { View } from "../src/views/view.ts";

const analysis = { title: "T", doc: "D", columns: { a: { unit: "ns", doc: "x" } }, data: { a: [1, null] }, truncated: null };
const good = { schema_version: 1, generated_by: "rankscope 0.1.0", run: { id: "r", path: "p", ranks: [0] }, analyses: { t: analysis }, findings: [] };

describe("what cannot be shown says why", () => {
  test.each([
    ["", /no data/], ["/*RANKSCOPE_DATA*/", /template/], ['{"schema_version": 1,', /cannot be read/], ["[]", /not an object/],
    ['{"schema_version": 2}', /schema 1, but found schema 2/], ["{}", /found none/],
  ])("%j", (text, why) => {
    expect(() => parsePayload(text)).toThrow(PayloadError);
    expect(() => parsePayload(text)).toThrow(why);
  });
});

test("a good payload comes through as it is", () => {
  const payload = validatePayload(good);
  expect(payload.problems).toEqual([]);
  expect(payload.analyses.get("t")?.data["a"]).toEqual([1, null]);
  expect(payload.run.world_size).toBeNull();
});

test("a broken analysis is left out and named, the others stay", () => {
  const payload = validatePayload({ ...good, analyses: { t: analysis, u: { ...analysis, data: {} }, v: { ...analysis, columns: { a: {}, b: {} }, data: { a: [1], b: [] } }, w: 3 } });
  expect([...payload.analyses.keys()]).toEqual(["t"]);
  expect(payload.problems).toHaveLength(3);
  expect(payload.problems[1]).toContain("column b has 0 values where the first has 1");
});

test("names of columns and analyses touch no prototype", () => {
  const payload = parsePayload(JSON.stringify(good).replace('"t":', '"__proto__":').replaceAll('"a":', '"constructor":'));
  expect([...payload.analyses.keys()]).toEqual(["__proto__"]);
  expect(({} as Record<string, unknown>)["columns"]).toBeUndefined();
});

test("findings: an unknown severity is a warning, one without a title is named", () => {
  const payload = validatePayload({ ...good, findings: [{ title: "x", severity: "fatal", evidence: [{ name: "n", value: 1, unit: "ns" }, 7] }, {}] });
  expect(payload.findings).toHaveLength(1);
  expect(payload.findings[0]).toMatchObject({ severity: "warning", saving_ns: null, ranks: [], evidence: [{ name: "n" }] });
  expect(payload.problems).toHaveLength(1);
});

test("findings keep their symptoms, and a diagnosis is whole or null", () => {
  const finding = { title: "late", severity: "warning", symptoms: [{ title: "imbalance", saving_ns: 5, because: "the same compute" }, { severity: "info" }, 3], cost_ns: 7 };
  const headline = { text: "{finding}.", values: [{ name: "finding", value: "late", unit: "" }] };
  const diagnosis = { headline, stragglers: { state: "straggler", label: "", ranks: [1], sentence: headline, longest: null }, saving_ns: 5, not_judged: [{ what: "Time per step", why: "no step is marked" }] };
  const payload = validatePayload({ ...good, findings: [finding], diagnosis });
  expect(payload.findings[0]).toMatchObject({ cost_ns: 7, because: "", symptoms: [{ title: "imbalance", saving_ns: 5, because: "the same compute" }] });
  expect(payload.diagnosis).toEqual({ ...diagnosis, not_judged: [{ what: "Time per step", why: "no step is marked", record: "" }] });
  for (const broken of [null, 3, {}, { ...diagnosis, headline: null }, { ...diagnosis, stragglers: { ...diagnosis.stragglers, state: "maybe" } }]) {
    expect(validatePayload({ ...good, diagnosis: broken }).diagnosis).toBeNull();
  }
});

describe("which views there are", () => {
  const payload = validatePayload({ ...good, analyses: { t: analysis, kernels: analysis, memory_blocks: analysis } });
  const views = viewsOf(payload, false);

  test("an analysis that no view knows gets one, and no other does", () => {
    expect(views.filter((view) => view.group === "tables").map((view) => view.id)).toEqual(["t"]);
    expect(views.map((view) => view.id)).toContain("kernels");
    expect(views.map((view) => view.id)).not.toContain("timeline");
    expect(viewsOf(payload, true).map((view) => view.id)).toContain("timeline");
  });
  test("a link leads to any analysis, also to one that a view shows among its tables", () => {
    expect(viewOf(payload, views, "memory_blocks")?.title).toBe("Memory blocks");
    expect(viewOf(payload, views, "nothing")).toBeUndefined();
    expect(homeOf("memory_blocks")).toBe("memory");
    expect(homeOf("step_time")).toBe("steps");
    expect(homeOf("t")).toBe("t");
  });
  test("no two views have one name or one title", () => {
    for (const of of [(view: View): string => view.id, (view: View): string => view.title]) expect(new Set(views.map(of)).size).toBe(views.length);
  });
});

describe("headlines", () => {
  const said = { text: "Rank {rank} waits {waited}; {unknown} stays.", values: [{ name: "rank", value: 3, unit: "" }, { name: "waited", value: 1_500_000, unit: "ns" }, 7] };
  test("come with their values; what is none is null", () => {
    const payload = validatePayload({ ...good, analyses: { t: { ...analysis, headline: said }, u: { ...analysis, headline: "x" } } });
    expect(payload.analyses.get("t")?.headline?.values.map(({ name }) => name)).toEqual(["rank", "waited"]);
    expect(payload.analyses.get("u")?.headline).toBeNull();
  });
});

test.each([["ddp_buckets", "DDP buckets"], ["memory_by_step", "Memory by step"], ["", ""], ["<b>", "<b>"]])("short title of %s", (name, title) => {
  expect(shortTitle(name)).toBe(title);
});

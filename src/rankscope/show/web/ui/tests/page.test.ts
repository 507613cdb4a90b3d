import { afterEach, describe, expect, test, vi } from "vitest";
import { formatHash, parseHash, Router } from "../src/app/router.ts";
import { blocksOf, largestIn } from "../src/views/heat.ts";
import { firstName } from "../src/views/diff_events.ts";
import { shortFrame } from "../src/views/memory_parts.ts";
import { docParts, paragraphs } from "../src/components/doc_text.ts";
import { fold, MARKER } from "../plugins/single_file.ts";
import { bareRun, fold as foldData, makeRun } from "../scripts/fixtures.mjs";

describe("permalinks", () => {
  test("there and back", () => {
    const params = new Map([["rank", "3"], ["kernels.q", "a b&c=d"]]);
    expect(parseHash(formatHash("steps", params))).toEqual({ view: "steps", params });
  });
  test("bad ones lead nowhere, not astray", () => {
    expect(parseHash("").view).toBe("");
    expect(parseHash("#/%E0%A4%A").view).toBe("");
    expect(parseHash("#/<img>?x").params.get("x")).toBe("");
  });
});

describe("the address names the run that is shown", () => {
  afterEach(() => vi.unstubAllGlobals());
  function at(hash: string): Router {
    const location = { hash };
    vi.stubGlobal("location", location);
    vi.stubGlobal("addEventListener", () => undefined);
    vi.stubGlobal("history", { replaceState: (_: unknown, __: string, to: string) => { location.hash = to; } });
    return new Router(() => undefined);
  }
  test("as soon as its key is known, and with the view", () => {
    const router = at("#/?x=1");
    expect(router.href("run")).toBe("#/run");
    router.stay("scaling", "abc");
    expect(location.hash).toBe("#/scaling?x=1&run=abc");
    expect(router.href("steps", { rank: 3 })).toBe("#/steps?run=abc&rank=3");
    router.note({ x: "" });
    expect(location.hash).toBe("#/scaling?run=abc");
  });
  test("a link that names one stays, and a link may lead into another", () => {
    const router = at("#/steps?run=other");
    router.stay("overview", "abc");
    expect(location.hash).toBe("#/steps?run=other");
    expect(router.href("steps")).toBe("#/steps?run=other");
    expect(router.href("overview", { run: "third" })).toBe("#/overview?run=third");
  });
});

test("docstrings: caption first, indented formulas as they stand", () => {
  const doc = "The caption\nof it.\n\n    Words.\n\n        a = b - c\n";
  expect(docParts(doc).lead).toBe("The caption of it.");
  expect(paragraphs(doc)).toHaveLength(3);
});

describe("one file", () => {
  const html = `<html><head><meta content="%CSP%"><link rel="stylesheet" href="x.css"></head><body>${MARKER}<script type="module" crossorigin src="x.js"></script></body></html>`;
  test("holds script, style and a policy with their hashes, and refers to nothing", () => {
    const page = fold(html, "let a = '$&';", "p{}");
    expect(page).toContain("<script type=\"module\">let a = '$&';</script>");
    expect(page).toMatch(/default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-/);
    expect(page).not.toContain("x.css");
  });
  test.each([["'</script>'", "p{}"], ["'/*RANKSCOPE_DATA*/'", "p{}"], ["1", "p{background:url(x)}"], ["1", "</style>"]])("refuses %s %s", (script, style) => {
    expect(() => fold(html, script, style)).toThrow();
  });
  test("data cannot end its element", () => {
    expect(foldData(MARKER, { name: "</script><!--&\u2028" })).not.toMatch(/<\/script>.+<\/script>|<!--|&|\u2028/);
  });
});

test("the fixtures hold together: parts sum to their whole", () => {
  const run = makeRun({ ranks: 4, late: 2 });
  const { data } = run.analyses.device_time as unknown as { data: Record<string, number[]> };
  data["span_ns"]?.forEach((span, row) => {
    const of = (name: string): number => data[name]?.[row] ?? NaN;
    expect(of("compute_ns") + of("exposed_communication_ns") + of("exposed_memory_ns") + of("idle_ns")).toBe(span);
  });
  expect(bareRun().analyses).toEqual({});
});

test("of joined names the first one, with its commas in brackets", () => {
  expect(firstName("gemm<4, float>(int, char), relu and 2 more")).toBe("gemm<4, float>(int, char)");
  expect(firstName("void at::native::elementwise<std::array<char*, 3> >(int, Func)")).toBe("void at::native::elementwise<std::array<char*, 3> >(int, Func)");
});

test("a frame of a snapshot as its function and the end of its path", () => {
  expect(shortFrame("/usr/local/lib/python3.10/dist-packages/vllm/worker/cache_engine.py:83 _allocate_kv_cache")).toBe("_allocate_kv_cache, vllm/worker/cache_engine.py:83");
  expect(shortFrame("<string>:1 <module>")).toBe("<module>, <string>:1");
  expect(shortFrame("no frame")).toBe("no frame");
});

describe("ranks by step", () => {
  test("a row each while there is room, else blocks", () => {
    expect(blocksOf(64, 128)).toHaveLength(64);
    expect(blocksOf(1024, 128)).toHaveLength(64);
    expect(blocksOf(1024, 128).at(-1)).toEqual({ from: 1008, to: 1024 });
    expect(blocksOf(65, 128).at(-1)).toEqual({ from: 64, to: 65 });
  });
  test("a block shows its largest amount, and which rank has it", () => {
    const values = [null, 5, 3, 7, 9, null, 1, null]; // four ranks, two steps
    expect(largestIn(values, { from: 0, to: 4 }, 0, 2)).toEqual({ index: 2, value: 9 });
    expect(largestIn(values, { from: 0, to: 4 }, 1, 2)).toEqual({ index: 1, value: 7 });
    expect(largestIn(values, { from: 2, to: 4 }, 1, 2)).toEqual({ index: 2, value: null });
  });
});

import { afterEach, expect, test, vi } from "vitest";
import { ServedRun } from "../src/data/served.ts";

afterEach(() => { vi.useRealTimers(); vi.unstubAllGlobals(); });

/** A server whose answers change as it works; what it was asked. */
function answering(answers: () => Record<string, unknown>): string[] {
  const asked: string[] = [];
  vi.stubGlobal("document", { hidden: false });
  vi.stubGlobal("fetch", (address: string) => {
    const what = /^api\/(\w+)/.exec(address)?.[1] ?? "";
    asked.push(what);
    const answer = answers()[what];
    return Promise.resolve(answer === undefined ? new Response(JSON.stringify({ error: { what: "there is no such run", hint: "" } }), { status: 404 }) : new Response(JSON.stringify(answer)));
  });
  return asked;
}

const state = (version: number, phase: string) => ({ phase, what: "", done: 0, total: 0, ready: [], error: null, version });
const run = (key: string, name: string) => ({ key, name, ranks: null, started: null });
const summary = { schema_version: 1, run: {}, findings: [], analyses: {} };

test("the runs that a cold server finds while it works come into the list, and the page is told", async () => {
  vi.useFakeTimers();
  let work = { runs: { runs: [run("b", "")], shown: "b" }, state: state(0, "reading"), summary };
  answering(() => work);
  const served = new ServedRun(null);
  await served.load();
  expect(served.runs.map(({ key }) => key)).toEqual(["b"]);
  const seen: number[] = [];
  served.onChange(() => seen.push(served.runs.length));
  work = { ...work, runs: { runs: [run("a", "first"), run("b", "second")], shown: "b" }, state: state(1, "ready") };
  await vi.advanceTimersByTimeAsync(3000);
  expect(served.runs.map(({ name }) => name)).toEqual(["first", "second"]);
  expect(served.shown).toBe("b"); // not the first of the list
  expect(seen).toEqual([2]);
});

test("a server that is ready between the list and the state is asked for its list again", async () => {
  let lists = 0;
  answering(() => ({ runs: { runs: lists++ === 0 ? [run("b", "")] : [run("a", "first"), run("b", "second")], shown: "b" }, state: state(3, "ready"), summary }));
  const served = new ServedRun(null);
  await served.load();
  expect(served.runs).toHaveLength(2);
});

test("what was fetched is fetched anew once the server has read the run again, and stays until then", async () => {
  vi.useFakeTimers();
  const table = (value: number) => ({ title: "Overview", doc: "", columns: { ranks: { unit: "", doc: "" } }, data: { ranks: [value] }, truncated: null });
  const about = { ...summary, analyses: { overview: { title: "Overview", doc: "", columns: { ranks: { unit: "", doc: "" } }, rows: 1, state: "ready" } } };
  const following = (generation: number, version: number) => ({ ...state(version, "ready"), following: true, generation });
  let work: Record<string, unknown> = { runs: { runs: [], shown: "b" }, state: following(0, 1), summary: about, table: table(1) };
  const asked = answering(() => work);
  const served = new ServedRun(null);
  await served.load();
  await served.table("overview");
  const seen: unknown[] = [];
  served.onChange(() => seen.push([served.generation, served.payload.analyses.get("overview")?.data["ranks"]]));
  await vi.advanceTimersByTimeAsync(5000);
  expect(seen).toEqual([]); // nothing has come
  expect(asked.filter((what) => what === "state").length).toBeGreaterThan(2); // and it goes on looking
  work = { ...work, state: following(1, 2), table: table(2) };
  await vi.advanceTimersByTimeAsync(2500);
  expect(seen).toEqual([[1, [2]]]);
});

test("a link to a run that turns out not to be there fails, and the others are listed", async () => {
  vi.useFakeTimers();
  let work: Record<string, unknown> = { runs: { runs: [run("c", "")], shown: "c" }, state: state(0, "reading"), summary };
  answering(() => work);
  const served = new ServedRun("c");
  await served.load();
  work = { runs: { runs: [run("a", "first"), run("b", "second")], shown: "b" } };
  await vi.advanceTimersByTimeAsync(1000);
  expect(served.state.phase).toBe("failed");
  expect(served.runs.map(({ key }) => key)).toEqual(["a", "b"]);
});

test("a link to a run that is not there is an error with the others to choose from", async () => {
  answering(() => ({ runs: { runs: [run("a", "first")], shown: "a" }, state: state(3, "ready"), summary }));
  const served = new ServedRun("nope");
  await served.load();
  expect(served.state.phase).toBe("failed");
  expect(served.state.error?.what).toContain("not in this directory");
  expect(served.runs.map(({ key }) => key)).toEqual(["a"]);
});

import { describe, expect, it } from "vitest";
import type { Api } from "../src/data/api.ts";
import type { Finding } from "../src/data/payload.ts";
import { readAddress, writeAddress } from "../src/timeline/address.ts";
import { eventParams, eventTime, findEvent, readEventTime, saidOf } from "../src/timeline/anchor.ts";
import type { Layout } from "../src/timeline/layout.ts";

const EVENT = { rank: 2, start_ns: 1000, end_ns: 1200, reason: "Rank 2 arrives here", since_ns: null, peers: [0, 3], from_ns: 200, to_ns: 1200 };
const LAYOUT = { tracks: [
  { rank: 2, kind: "rank", firstLane: 4, lanes: 1 }, { rank: 2, kind: "stream", firstLane: 5, lanes: 2 }, { rank: 2, kind: "thread", firstLane: 7, lanes: 1 }, { rank: 3, kind: "stream", firstLane: 8, lanes: 1 },
] } as unknown as Layout;

/** A server whose lanes have these events: lane, row, start, end. */
function serving(events: readonly (readonly [number, number, number, number])[]): Api {
  return {
    columns(_name: string, params: { lanes: string }) {
      const lanes = params.lanes.split(",").map(Number);
      const found = events.filter(([lane]) => lanes.includes(lane));
      const columns: Record<string, number[]> = { lane: found.map(([lane]) => lanes.indexOf(lane)), row: found.map((each) => each[1]), start_ns: found.map((each) => each[2]), end_ns: found.map((each) => each[3]) };
      return Promise.resolve({ u32: (name: string) => Uint32Array.from(columns[name]!), f64: (name: string) => Float64Array.from(columns[name]!) });
    },
  } as unknown as Api;
}

describe("the event of a finding", () => {
  it("has an address that shows it with its peers", () => {
    const params = eventParams(EVENT);
    expect(params).toEqual({ t: "100_1300", open: "2", pin: "2.0.3", ev: "2_1000_1200" });
    const address = readAddress(new Map(Object.entries(params)));
    expect(address.event).toEqual({ rank: 2, start: 1000, end: 1200 });
    expect(address.window).toEqual({ from: 100, to: 1300 });
    const none = new Set<number>();
    expect(writeAddress({ ...address, pinned: { ranks: none, tracks: none }, groupBy: "" }, { open: none, pinned: none, groupBy: "" })["ev"]).toBe("");
  });

  it.each([undefined, "", "2_1000", "2_a_b", "-1_5_6", "2_1000_1200_9", `2_${"9".repeat(30)}_1`])("is none in %s", (text) => {
    expect(readEventTime(text)).toBeNull();
  });

  it("is the event of that rank that starts and ends then, wherever it lies", async () => {
    const api = serving([[5, 0, 900, 1100], [5, 1, 1000, 1100], [6, 7, 1000, 1200], [8, 2, 1000, 1200]]);
    expect(await findEvent(api, LAYOUT, { rank: 2, start: 1000, end: 1200 })).toEqual({ lane: 6, row: 7 });
  });

  it("may be on a thread, or left out", async () => {
    expect(await findEvent(serving([[7, 3, 1000, 1200]]), LAYOUT, { rank: 2, start: 1000, end: 1200 })).toEqual({ lane: 7, row: 3 });
    expect(await findEvent(serving([[5, 3, 990, 1200]]), LAYOUT, { rank: 2, start: 1000, end: 1200 })).toBeNull();
  });

  it("is annotated with what the findings say of it, and no other event is", () => {
    const findings = [{ place: { rank: 2, step: 1, event: EVENT } }, { place: null }, { place: { rank: 2, step: 1, event: null } }] as unknown as Finding[];
    expect(saidOf(findings, EVENT)).toEqual([EVENT]);
    expect(saidOf(findings, { ...EVENT, rank: 3 })).toEqual([]);
    expect(saidOf([{ place: null, symptoms: findings }] as unknown as Finding[], EVENT)).toEqual([EVENT]);
  });
});

describe("the event of a table's row", () => {
  it("is read back from the address", () => {
    const event = { rank: 3, start: 2_000_000, end: 3_000_000 };
    expect(readEventTime(eventTime(event))).toEqual(event);
  });

  it("is found where rounding moved it, and not further away", async () => {
    expect(await findEvent(serving([[5, 0, 1001, 1200]]), LAYOUT, { rank: 2, start: 1000, end: 1200 })).toEqual({ lane: 5, row: 0 });
    expect(await findEvent(serving([[5, 0, 1003, 1200]]), LAYOUT, { rank: 2, start: 1000, end: 1200 })).toBeNull();
  });
});

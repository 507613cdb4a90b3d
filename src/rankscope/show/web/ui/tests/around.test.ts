import { expect, it } from "vitest";
import type { Api } from "../src/data/api.ts";
import { eventsAround } from "../src/timeline/around.ts";
import type { Layout } from "../src/timeline/layout.ts";
import type { Names } from "../src/timeline/names.ts";

const TRACKS = [
  { rank: 0, kind: "stream", title: "stream 7", firstLane: 0, lanes: 1 }, { rank: 0, kind: "thread", title: "thread 5", firstLane: 1, lanes: 2 },
  { rank: 0, kind: "python", title: "Python, thread 5", firstLane: 3, lanes: 2 }, { rank: 0, kind: "python", title: "Python, thread 6", firstLane: 5, lanes: 1 },
];
const layout = { tracks: TRACKS, laneTrack: Uint32Array.from([0, 1, 1, 2, 2, 3]) } as unknown as Layout;
const NAMES = ["step", "aten::mm", "cudaLaunchKernel", "train.py(3): main", "nn.Module: Linear_0", "other.py"];
const names = { all: Promise.resolve(), get: (id: number) => NAMES[id] } as unknown as Names;

/** Lane, row, start, end, name. */
const EVENTS = [[1, 0, 0, 100, 0], [1, 1, 10, 40, 1], [2, 0, 12, 14, 2], [3, 0, 0, 90, 3], [4, 0, 5, 50, 4], [5, 0, 0, 100, 5]] as const;
const api = {
  columns(_name: string, { lanes, from, to }: { lanes: string; from: number; to: number }) {
    const asked = lanes.split(",").map(Number);
    const found = EVENTS.filter(([lane, , start, end]) => asked.includes(lane) && start < to && end > from);
    const columns: Record<string, number[]> = { lane: found.map(([lane]) => asked.indexOf(lane)), row: found.map((e) => e[1]), start_ns: found.map((e) => e[2]), end_ns: found.map((e) => e[3]), name: found.map((e) => e[4]) };
    return Promise.resolve({ u32: (name: string) => Uint32Array.from(columns[name]!), f64: (name: string) => Float64Array.from(columns[name]!) });
  },
} as unknown as Api;
const launch = { lane: 2, row: 0, name: "cudaLaunchKernel", start_ns: 12, end_ns: 14 };

it("has what was open around a kernel's launch on its thread, innermost first", async () => {
  const found = await eventsAround({ api, layout, names }, { lane: 0, row: 4, start_ns: 30, end_ns: 60, launch });
  expect(found.host.map(({ name }) => name)).toEqual(["aten::mm", "step"]);
  expect(found.python.map(({ name, lane, row }) => [name, lane, row])).toEqual([["nn.Module: Linear_0", 4, 0], ["train.py(3): main", 3, 0]]);
});

it("has what contains an operator, and not itself", async () => {
  const found = await eventsAround({ api, layout, names }, { lane: 1, row: 1, start_ns: 10, end_ns: 40, launch: null });
  expect(found.host.map(({ name }) => name)).toEqual(["step"]);
});

it("has nothing for a kernel without a launch", async () => {
  expect(await eventsAround({ api, layout, names }, { lane: 0, row: 0, start_ns: 1, end_ns: 2, launch: null })).toEqual({ host: [], python: [] });
});

import { expect, test } from "vitest";
import type { Api } from "../src/data/api.ts";
import { Counters } from "../src/timeline/counters.ts";
import { askedHit, hitAt } from "../src/timeline/hit.ts";
import type { Palette } from "../src/timeline/frame.ts";
import { Labels } from "../src/timeline/labels.ts";
import { Model } from "../src/timeline/model.ts";
import { Names } from "../src/timeline/names.ts";
import { RowKind, upperPart } from "../src/timeline/rows.ts";
import { TILE_BINS, TileCache } from "../src/timeline/tiles.ts";
import { binsOf, eventsOf, type Event } from "./answers.ts";
import { layoutOf } from "./layout.ts";

const [COMPUTE, COMMUNICATION] = [0, 1];
const WIDE = 256;
const SPAN = TILE_BINS * WIDE;
const at = (bin: number): number => bin * WIDE;
const event = (from: number, to: number, category: number, name: number): Event => ({ start: at(from), end: at(to), category, name });

/** One rank's own lane: a collective that covers most of every bin it shares with kernels, a kernel alone, two kernels at once. */
const events = [
  event(100, 400, COMMUNICATION, 2), event(120, 260, COMPUTE, 0), event(150, 280, COMPUTE, 1), // while it runs
  event(500, 600, COMPUTE, 1), event(700, 900, COMMUNICATION, 2),
];

const inks = { onInk: ["#fff", "#fff"], text: "", muted: "", line: "", strong: "", accent: "", surface: "", warning: "", error: "", select: "" } as unknown as Palette;

/** The words that are written below the ruler on a picture of one folded rank, with where they stand. */
function written(fill: (cache: TileCache) => void): { text: string; x: number; y: number; model: Model }[] {
  const cache = new TileCache(WIDE, 4);
  fill(cache);
  const api = {} as Api;
  const names = new Names();
  Object.assign(names, { get: (name: number) => ["first_kernel", "second_kernel", "all_reduce"][name] });
  const layout = { ...layoutOf(3), span: SPAN };
  const model = new Model(api, layout, cache, names, new Counters(api, SPAN, () => undefined, () => undefined));
  [model.width, model.height] = [1024, 150];
  model.refold();
  model.window = { from: 0, to: SPAN };
  const words: { text: string; x: number; y: number; model: Model }[] = [];
  const context = new Proxy({}, {
    get: (_, what) => (what === "fillText" ? (text: string, x: number, y: number) => words.push({ text, x, y, model })
      : what === "measureText" ? (text: string) => ({ width: 6 * text.length }) : () => undefined),
    set: () => true,
  });
  const scene = { cache, window: model.window, width: 1024, level: 0, levels: 1, columns: cache.columnsOf(0, 0, SPAN), part: model.window };
  new Labels(model, { getContext: () => context } as unknown as HTMLCanvasElement).draw({ scene, scroll: 0, first: 0, last: 1 }, inks, 1);
  return words.filter(({ text }) => /kernel|reduce/.test(text));
}

const asEvents = (cache: TileCache): void => cache.addEvents(cache.column(0, 0), [0], eventsOf([events], 0, SPAN));
const asBins = (cache: TileCache): void => cache.addBins(cache.column(0, 0), [0], binsOf([events], WIDE, 0));

test.each([["exact events", asEvents], ["bins", asBins]])("from %s, every label stands in the part where its category is drawn", (_, fill) => {
  const words = written(fill);
  expect(words.some(({ text }) => text.startsWith("all_reduce"))).toBe(true);
  expect(words.some(({ text }) => text.includes("kernel"))).toBe(true);
  for (const { text, y, model } of words) {
    expect(model.rows.kind[0]).toBe(RowKind.Rank);
    const upper = upperPart(model.rows, 0);
    expect(upper).toBeGreaterThan(0);
    expect(y > upper, text).toBe(text.startsWith("all_reduce")); // y from the row's top, the first row's: 0
  }
});

test.each([["exact events", asEvents], ["bins", asBins]])("from %s, no label is written over another", (_, fill) => {
  const words = written(fill).sort((a, b) => a.y - b.y || a.x - b.x);
  for (let i = 1; i < words.length; i++) {
    const [before, now] = [words[i - 1]!, words[i]!];
    if (before.y === now.y) expect(now.x).toBeGreaterThanOrEqual(before.x + 6 * before.text.length);
  }
});

test("a point in one part hits an event of that part or nothing", async () => {
  const upper = { left: Uint8Array.from([0, 1]), known: new Map<number, number>() };
  const lower = { left: Uint8Array.from([1, 0]), known: new Map<number, number>() };
  for (const fill of [asEvents, asBins]) {
    const cache = new TileCache(WIDE, 4);
    fill(cache);
    const scene = { cache, window: { from: 0, to: SPAN }, width: 1024, level: 0, levels: 1, columns: cache.columnsOf(0, 0, SPAN), part: { from: 0, to: SPAN } };
    const exact = fill === asEvents;
    for (let bin = 0; bin < 1000; bin++) {
      const here = events.map((each, row) => ({ ...each, row })).filter(({ start, end }) => start < at(bin + 1) && end > at(bin));
      for (const [part, category] of [[upper, COMPUTE], [lower, COMMUNICATION]] as const) {
        const rows = here.filter((each) => each.category === category).map(({ row }) => row);
        const hit = hitAt(scene, 0, at(bin) + 128, 0, part);
        if (hit) expect(rows).toContain(hit.row);
        else if (exact || here.length === 1) expect(rows).toEqual([]);
        if (bin % 50 !== 0) continue;
        const asked = await askedHit({ columns: (_, params) => Promise.resolve(eventsOf([events], Number(params?.["from"]), Number(params?.["to"]))) } as Pick<Api, "columns">, 0, at(bin) + 128, 0.5, part.left);
        expect(asked === null ? rows.length === 0 : rows.includes(asked.row)).toBe(true);
      }
    }
  }
});

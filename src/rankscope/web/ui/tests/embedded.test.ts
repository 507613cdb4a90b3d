/**
 * A report answers as the server does: blocks and answers are written by Python (tests/report/embedded_answers.py), which
 * also runs this with larger runs, named in RANKSCOPE_EMBEDDED.
 */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { ColumnFile } from "../src/data/column_file.ts";
import { ApiError } from "../src/data/api.ts";
import { Blocks } from "../src/data/embedded/blocks.ts";
import { EmbeddedApi } from "../src/data/embedded/embedded.ts";
import type { Head } from "../src/data/embedded/run.ts";

interface Asked { readonly name: string; readonly params: Record<string, string | number>; readonly status: number; readonly json?: unknown; readonly columns?: string }
interface Written { readonly blocks: Record<string, string>; readonly asked: readonly Asked[] }

const file = process.env["RANKSCOPE_EMBEDDED"] ?? new URL("./embedded.json", import.meta.url);
const written = JSON.parse(readFileSync(file, "utf8")) as Written;
const blocks = new Blocks((name) => written.blocks[name] ?? null);
const api = new EmbeddedApi(await blocks.json<Head>("timeline"), blocks);

const U32 = ["bin_lane", "bin", "bin_count", "bin_name", "bin_row", "busy_lane", "busy_bin", "lane", "row", "name", "busy_rank", "busy_count", "top_name", "top_count", "counter", "node_name", "cell_node", "cell_rank", "cell_calls"];
const U8 = ["busy_category", "category", "top_category"];
const F64 = ["busy_ns", "start_ns", "end_ns", "top_ns", "top_self_ns", "at_ns", "low", "high", "cell_self_ns", "cell_total_ns"];
const I32 = ["node_parent"];

function columns(file: ColumnFile, names: readonly string[]): Record<string, number[]> {
  return Object.fromEntries(names.map((name) => [name, Array.from(U32.includes(name) ? file.u32(name) : U8.includes(name) ? file.u8(name) : I32.includes(name) ? file.i32(name) : file.f64(name))]));
}

for (const kind of [...new Set(written.asked.map(({ name }) => name))]) {
  // The time is a machine's that does other things: large runs hold many numbers to compare.
  test(`${kind}: as the server answers`, { timeout: 240_000 }, async () => {
    for (const { name, params, status, json, columns: bytes } of written.asked.filter((each) => each.name === kind)) {
      const asked = JSON.stringify(params);
      if (status !== 200) {
        await expect(api.json(name, params), asked).rejects.toThrow(ApiError);
        continue;
      }
      if (bytes === undefined) {
        const mine = await api.json<Record<string, unknown>>(name, params);
        if (!name.endsWith("event")) { expect(mine, asked).toEqual(json); continue; }
        // Of all but the longest events the report does not hold these, and says so.
        const { note, ...event } = mine;
        // Nor which kernels an operator launched, and its backward.
        const { forward: _f, backward: _b, kernels: _k, ...wanted } = json as Record<string, unknown>;
        expect(note === undefined ? event : { ...event, args: wanted["args"], shapes: wanted["shapes"], stack: wanted["stack"] }, asked).toEqual(wanted);
        continue;
      }
      const buffer = Uint8Array.from(Buffer.from(bytes, "base64")).buffer;
      const theirs = new ColumnFile(buffer);
      const names = Object.keys(theirs.meta["columns"] as object);
      expect([...U32, ...U8, ...I32, ...F64]).toEqual(expect.arrayContaining(names));
      const mine = await api.columns(name, params);
      const { columns: _, ...meta } = theirs.meta;
      expect(mine.meta, asked).toEqual(meta);
      expect(columns(mine, names), asked).toEqual(columns(theirs, names));
    }
  });
}

test("a truncated block is reported as unreadable", async () => {
  const cut = new Blocks((name) => written.blocks[name]?.slice(0, 8) ?? null);
  await expect(cut.json("timeline")).rejects.toThrow("A part of this report cannot be read");
});

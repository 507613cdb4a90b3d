/**
 * A report answers as the server does: blocks and answers are written by Python (tests/show/report/embedded_answers.py), which
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

type Type = "u8" | "u32" | "i32" | "f64";

function columns(file: ColumnFile, types: Readonly<Record<string, Type>>): Record<string, number[]> {
  return Object.fromEntries(Object.entries(types).map(([name, type]) => [name, Array.from(file[type](name))]));
}

for (const kind of [...new Set(written.asked.map(({ name }) => name))]) {
  // The time is a machine's that does other things: large runs hold many numbers to compare.
  test(`${kind}: as the server answers`, { timeout: 240_000 }, async () => {
    for (const { name, params, status, json, columns: bytes } of written.asked.filter((each) => each.name === kind)) {
      const asked = JSON.stringify(params);
      if (status !== 200) {
        await expect(api.json(name, params).catch((error: unknown) => (name === "path" ? api.columns(name, params) : Promise.reject(error))), asked).rejects.toThrow(ApiError);
        continue;
      }
      if (bytes === undefined) {
        const mine = await api.json<Record<string, unknown>>(name, params);
        if (!name.endsWith("event")) { expect(mine, asked).toEqual(json); continue; }
        // Of all but the longest events the report does not hold these, and says so.
        const { note, ...event } = mine;
        const wanted = json as Record<string, unknown>;
        expect(note === undefined ? event : { ...event, args: wanted["args"], shapes: wanted["shapes"], stack: wanted["stack"] }, asked).toEqual(wanted);
        continue;
      }
      const buffer = Uint8Array.from(Buffer.from(bytes, "base64")).buffer;
      const theirs = new ColumnFile(buffer);
      const types = Object.fromEntries(Object.entries(theirs.meta["columns"] as Record<string, { type: Type }>).map(([column, { type }]) => [column, type]));
      const mine = await api.columns(name, params);
      const { columns: _, ...meta } = theirs.meta;
      expect(mine.meta, asked).toEqual(meta);
      expect(columns(mine, types), asked).toEqual(columns(theirs, types));
    }
  });
}

test("a truncated block is reported as unreadable", async () => {
  const cut = new Blocks((name) => written.blocks[name]?.slice(0, 8) ?? null);
  await expect(cut.json("timeline")).rejects.toThrow("A part of this report cannot be read");
});

/** Opens the page's data: the report's own file, or the server that wrote the page. */
import { pageBlocks } from "./embedded/blocks.ts";
import { Embedded } from "./embedded/embedded.ts";
import type { Payload } from "./payload.ts";
import { ServedRun } from "./served.ts";
import type { Source } from "./source.ts";
import { parsePayload } from "./validate.ts";

export interface Opened {
  readonly payload: Payload;
  /** The source of the timeline; null in a report without one. */
  readonly served: Source | null;
}

/** Reads the block that `rankscope report` or `rankscope serve` wrote into the page. */
export async function open(run: string | null): Promise<Opened> {
  const text = document.getElementById("rankscope-data")?.textContent ?? "";
  if (/^\s*\{\s*"served"/.test(text)) {
    const served = new ServedRun(run);
    await served.load();
    return { payload: served.payload, served };
  }
  const blocks = pageBlocks(document);
  const tables = blocks.has("tables") ? await blocks.json<Record<string, unknown>>("tables") : {};
  const payload = parsePayload(text, tables);
  if (!blocks.has("timeline")) return { payload, served: null };
  const embedded = await Embedded.open(payload, blocks);
  return { payload: embedded.payload, served: embedded };
}

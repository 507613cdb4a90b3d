/** Where the page's data comes from: the block in a report, or the server that the block names. */
import type { Payload } from "./payload.ts";
import { Served } from "./served.ts";
import { parsePayload } from "./validate.ts";

export interface Opened {
  readonly payload: Payload;
  readonly served: Served | null;
}

/** Reads the block that `rankscope report` or `rankscope serve` wrote into the page. */
export async function open(run: string | null): Promise<Opened> {
  const text = document.getElementById("rankscope-data")?.textContent ?? "";
  if (!/^\s*\{\s*"served"/.test(text)) return { payload: parsePayload(text), served: null };
  const served = new Served(run);
  await served.load();
  return { payload: served.payload, served };
}

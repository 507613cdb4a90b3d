/** Where the page's data comes from: the report's own file, or the server that the page was told of. */
import type { Api, RunChoice, ServerState } from "./api.ts";
import { Embedded } from "./embedded/embedded.ts";
import { pageBlocks } from "./embedded/blocks.ts";
import type { Payload } from "./payload.ts";
import { ServedRun } from "./served.ts";
import { parsePayload } from "./validate.ts";

/** A run that answers questions (PROTOCOL.md), whoever holds it. */
export interface Source {
  readonly api: Api;
  readonly runs: readonly RunChoice[];
  /** The key of the run that is shown where the address names none. */
  readonly shown: string;
  /** What to call the directory that the runs lie in. */
  readonly place: string;
  /** Whether that is what an experiment left, so that its result is shown first. */
  readonly study: boolean;
  readonly state: ServerState;
  readonly payload: Payload;
  /** Whether there is a server behind it, which may have more to tell. */
  readonly live: boolean;
  /** What it does not hold though the run has it, in sentences. */
  readonly leftOut: readonly string[];
  readonly working: boolean;
  /** Grows when all that was fetched is of former files. */
  readonly generation: number;
  isReady(what: string): boolean;
  /** Brings an analysis' rows here. */
  table(name: string): Promise<void>;
  /** Calls back whenever there is something new; returns how to stop. */
  onChange(tell: () => void): () => void;
}

export interface Opened {
  readonly payload: Payload;
  /** What answers for the timeline; null in a report without one. */
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

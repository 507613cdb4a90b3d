/** Where the page's data comes from: today the block in the report; a served page brings another source of the same shape. */
import type { Payload } from "./payload.ts";
import { parsePayload } from "./validate.ts";

export interface Source {
  load(): Promise<Payload>;
}

/** The payload that `rankscope report` wrote into the page. */
export class EmbeddedSource implements Source {
  async load(): Promise<Payload> {
    const block = document.getElementById("rankscope-data");
    return parsePayload(block?.textContent ?? "");
  }
}

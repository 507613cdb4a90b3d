/** What the views see of a run: the same for a report's own file (`embedded/`) and for a server (`served.ts`). */
import type { Api, RunChoice, ServerState } from "./api.ts";
import type { Payload } from "./payload.ts";

export interface Source {
  readonly api: Api;
  readonly runs: readonly RunChoice[];
  /** The key of the run that is shown where the address names none. */
  readonly shown: string;
  /** The name of the directory that the runs are in. */
  readonly place: string;
  /** Whether the directory holds an experiment's results, which are then shown first. */
  readonly study: boolean;
  readonly state: ServerState;
  readonly payload: Payload;
  /** Whether a server answers, which may have more data later. */
  readonly live: boolean;
  /** Data of the run that is not available here, in sentences. */
  readonly leftOut: readonly string[];
  readonly working: boolean;
  /** Grows when everything fetched so far is out of date. */
  readonly generation: number;
  isReady(what: string): boolean;
  /** Fetches an analysis' rows. */
  table(name: string): Promise<void>;
  /** Calls back on every change; returns the function that stops it. */
  onChange(notify: () => void): () => void;
}

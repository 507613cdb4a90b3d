/** Responses of the server (PROTOCOL.md): JSON and column files, only from addresses relative to the page's own. */
import { ColumnFile } from "./column_file.ts";

export class ApiError extends Error {
  readonly status: number;
  readonly hint: string;
  constructor(status: number, what: string, hint: string) {
    super(what);
    this.name = "ApiError";
    this.status = status;
    this.hint = hint;
  }
}

export type Params = Readonly<Record<string, string | number | null | undefined>>;

export interface RunChoice {
  readonly key: string;
  readonly name: string;
  readonly ranks: number | null;
  readonly started: string | null;
  /** Where its traces lie within the directory that is served, if no other run's are there. */
  readonly folder: string | null;
}

export interface ServerState {
  readonly phase: string;
  readonly what: string;
  readonly done: number;
  readonly total: number;
  readonly ready: readonly string[];
  readonly error: { readonly what?: string; readonly hint?: string; readonly path?: string } | null;
  readonly version: number;
  /** Whether files of the run that appear are read too. */
  readonly following?: boolean;
  /** Grows when everything is to be fetched again. */
  readonly generation?: number;
  /** Whether the directory has the log of a watched job. */
  readonly watched?: boolean;
}

/** What the calls of a call tree are. */
export const CALLS = ["operators", "frames", "modules"] as const;
export type Calls = (typeof CALLS)[number];

export function isCalls(text: unknown): text is Calls {
  return CALLS.some((each) => each === text);
}

/** Answers questions about one run; what they are is in PROTOCOL.md. */
export interface Api {
  /** The run's key; null for the only one, or the one that is shown first. */
  readonly run: string | null;
  json<T>(name: string, params?: Params, signal?: AbortSignal): Promise<T>;
  columns(name: string, params?: Params, signal?: AbortSignal): Promise<ColumnFile>;
}

/** Asks the server that the page came from. */
export class ServerApi implements Api {
  readonly run: string | null;
  constructor(run: string | null) {
    this.run = run;
  }

  async json<T>(name: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
    return (await (await this.#get(name, params, signal)).json()) as T;
  }

  async columns(name: string, params: Params = {}, signal?: AbortSignal): Promise<ColumnFile> {
    return new ColumnFile(await (await this.#get(name, params, signal)).arrayBuffer());
  }

  async #get(name: string, params: Params, signal?: AbortSignal): Promise<Response> {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries({ run: this.run, ...params })) if (value !== null && value !== undefined) query.set(key, String(value));
    let response: Response;
    try {
      response = await fetch(`api/${name}?${query.toString()}`, { credentials: "same-origin", ...(signal ? { signal } : {}) });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not respond.", "`rankscope serve` or the tunnel to it may have stopped. Restart it and open the link that it prints.");
    }
    if (response.ok) return response;
    if (response.status === 401 || response.status === 403) {
      throw new ApiError(response.status, "This browser is not authorized.", "Open the latest link in the terminal of `rankscope serve`. Each link works in one browser.");
    }
    const body = (await response.json().catch(() => null)) as { error?: { what?: string; hint?: string } } | null;
    throw new ApiError(response.status, body?.error?.what ?? `The server responded with status ${response.status}.`, body?.error?.hint ?? "See its terminal for details.");
  }
}

/** Whether a fetch was aborted because it is no longer needed. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

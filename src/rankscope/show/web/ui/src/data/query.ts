/** SQL on the server (PROTOCOL.md): what a query can name, and its rows. */
import { ApiError } from "./api.ts";
import type { Cell } from "./payload.ts";

export interface QueryColumn {
  readonly name: string;
  readonly type: string;
  readonly unit: string;
  readonly doc: string;
}

export interface QueryTable {
  readonly name: string;
  readonly kind: "trace" | "result";
  readonly doc: string;
  /** Whether the traces have no rows for it. */
  readonly empty: boolean;
  readonly columns: readonly QueryColumn[];
}

export interface QuerySchema {
  readonly version: number;
  readonly tables: readonly QueryTable[];
  readonly examples: readonly { readonly name: string; readonly title: string; readonly sql: string }[];
  readonly limits: { readonly rows: number; readonly default_rows: number; readonly timeout_s: number; readonly default_timeout_s: number };
}

/** Where a row is in the timeline: rank, file, start, end; null where it is nowhere. */
export type RowPlace = readonly [number, number, number] | null;

export interface QueryRows {
  readonly columns: Readonly<Record<string, { readonly unit: string; readonly doc: string; readonly type: string; readonly instant?: boolean }>>;
  readonly data: Readonly<Record<string, readonly Cell[]>>;
  readonly rows: number;
  readonly truncated: boolean;
  readonly seconds: number;
  readonly places: readonly RowPlace[] | null;
}

export interface Query {
  readonly sql: string;
  readonly limit: number;
}

/** Sends a query; what comes back is JSON with the rows, or a file of them. */
export async function ask(run: string | null, query: Query, format: "json" | "parquet" | "arrow", signal: AbortSignal): Promise<Response> {
  const address = `api/query${run === null ? "" : `?run=${encodeURIComponent(run)}`}`;
  let response: Response;
  try {
    response = await fetch(address, { method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...query, format }), signal });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not respond.", "`rankscope serve` or the tunnel to it may have stopped.");
  }
  if (response.ok) return response;
  const body = (await response.json().catch(() => null)) as { error?: { what?: string; hint?: string | null } } | null;
  throw new ApiError(response.status, body?.error?.what ?? `The server responded with status ${response.status}.`, body?.error?.hint ?? "");
}

/** One rank of a table with a row for each rank and name, or all of them. */
import type { Cell } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import type { ViewContext } from "../views/view.ts";
import { selector } from "./controls.ts";
import { h } from "./dom.ts";

export interface RankChoice {
  /** The rank that is shown; null for all, and where there is but one. */
  readonly rank: Cell;
  readonly rows: readonly number[];
  /** Whether rows of several ranks are shown together, so that each names its rank. */
  readonly mixed: boolean;
  readonly control: HTMLElement | null;
}

const ALL = "all";

/** The rank in the address, else the slowest, else the first. */
export function rankChoice(context: ViewContext, id: string, table: Table, withAll = true): RankChoice {
  const ranks = table.has("rank") ? table.distinct("rank") : [];
  if (ranks.length < 2) return { rank: null, rows: table.rows(), mixed: false, control: null };
  const wanted = context.place.params.get("rank") ?? String(context.table("overview")?.cell(0, "slowest_rank") ?? "");
  const rank = withAll && wanted === ALL ? null : ranks.find((value) => String(value) === wanted) ?? ranks[0] ?? null;
  const choices = [...ranks.map((value) => ({ value: String(value), label: String(value) })), ...(withAll ? [{ value: ALL, label: "all ranks" }] : [])];
  const control = h("div", { class: "controls" }, selector(`${id}-rank`, "Rank", choices, rank === null ? ALL : String(rank), (value) => context.router.update({ rank: value })));
  return { rank, rows: rank === null ? table.rows() : table.where("rank", rank), mixed: rank === null, control };
}

/** The row of a table whose events are shown: to the row before and after it, and back to the table. */
import { button } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { eventParamsOf, rowParam } from "../components/event_link.ts";
import { orderKeys, readWalk, rowsToWalk, WALK, type WalkedRow } from "../components/row_walk.ts";
import type { Table } from "../data/table.ts";
import { shortTitle } from "../format/text.ts";
import { grouped } from "../format/units.ts";
import type { ViewContext } from "../views/view.ts";
import { ELSEWHERE } from "./anchor.ts";
import { GAP, gapsOf, gapWalk, hasGaps, servesGaps, type Gaps } from "./gap_walk.ts";

export class Walk {
  readonly element = h("nav", { class: "tl-path", "aria-label": "Rows of the table", hidden: true, "data-testid": "row-walk" });
  readonly #context: ViewContext;
  #shown = "";
  /** The gaps of the row, once they are fetched. */
  #gaps: { readonly of: string; readonly all: Gaps } | null = null;

  constructor(context: ViewContext) {
    this.#context = context;
  }

  /** Follows the address; what it names may have to be fetched. */
  async show(params: ReadonlyMap<string, string>): Promise<void> {
    const walked = readWalk(params.get(WALK));
    this.#shown = params.get(WALK) ?? "";
    this.element.hidden = walked === null;
    if (walked === null) return;
    const { payload, served } = this.#context;
    if (payload.analyses.get(walked.analysis)?.away && served) await served.table(walked.analysis).catch(() => undefined);
    const table = this.#context.table(walked.analysis);
    if (params.get(WALK) !== this.#shown) return; // another row was asked for meanwhile
    if (!table) {
      this.element.hidden = true;
      return;
    }
    this.#fill(walked, table, params);
    if (!hasGaps(walked.analysis, walked.column) || !servesGaps(this.#context) || !served || this.#gaps?.of === this.#shown) return;
    const of = this.#shown;
    const all = await gapsOf(served.api, table, walked.row).catch(() => null); // the longest is shown all the same
    if (all === null || of !== this.#shown) return;
    this.#gaps = { of, all };
    this.#fill(walked, table, params);
  }

  #fill(walked: WalkedRow, table: Table, params: ReadonlyMap<string, string>): void {
    const { analysis, row, column } = walked;
    const rows = rowsToWalk(table, walked, params).filter((each) => eventParamsOf(analysis, table, each, column) !== null);
    const at = rows.indexOf(row);
    const turn = (sign: string, label: string, by: number): HTMLElement => {
      const next = at < 0 ? undefined : rows[at + by];
      return button({ class: "quiet", "aria-label": label, title: label, "data-testid": by < 0 ? "row-previous" : "row-next", ...(next === undefined ? { "aria-disabled": "true" } : {}) }, () => { if (next !== undefined) this.#go(walked, table, next); }, sign);
    };
    const focused = document.activeElement instanceof HTMLElement && this.element.contains(document.activeElement) ? document.activeElement.dataset["testid"] : undefined;
    const back: Record<string, string> = { [rowParam(analysis)]: String(row) };
    for (const key of orderKeys(analysis)) if (params.get(key)) back[key] = params.get(key)!;
    this.element.replaceChildren(
      h("span", { role: "status" }, at < 0 ? `${shortTitle(analysis)}: this row` : `${shortTitle(analysis)}: row ${grouped(at + 1)} of ${grouped(rows.length)}`, ", ", named(String(table.cell(row, column) ?? ""), 40), whereText(table, row)),
      turn("◂", "Previous row", -1), turn("▸", "Next row", 1),
      ...this.#gapParts(walked, table, params),
      h("a", { class: "link", href: this.#context.router.href(this.#context.homeOf(analysis), back), "data-testid": "row-back" }, "Back to the table"),
      button({ class: "quiet", "aria-label": "Hide the row of the table" }, () => { this.element.hidden = true; this.#context.router.note({ [WALK]: "" }); }, "×"));
    if (focused !== undefined) this.element.querySelector<HTMLElement>(`[data-testid="${focused}"]`)?.focus({ preventScroll: true });
  }

  /** Of a row about idle time the gaps; in a report that there are more. */
  #gapParts({ analysis, row, column }: WalkedRow, table: Table, params: ReadonlyMap<string, string>): HTMLElement[] {
    if (!hasGaps(analysis, column) || (table.number(row, "gaps") ?? 0) < 2) return [];
    if (!servesGaps(this.#context)) return [h("span", { class: "quiet-line" }, "its longest gap; `rankscope serve` has all")];
    if (this.#gaps?.of !== this.#shown) return [];
    return gapWalk(this.#context, table, row, this.#gaps.all, Number(/^\d{1,6}$/.exec(params.get(GAP) ?? "")?.[0] ?? 0), { [WALK]: `${analysis}.${row}.${column}` });
  }

  #go({ analysis, column }: WalkedRow, table: Table, row: number): void {
    const params = eventParamsOf(analysis, table, row, column) ?? {};
    const changes = Object.fromEntries(Object.entries(params).map(([key, value]) => [key, String(value)]));
    this.#context.router.update({ ...ELSEWHERE, t: "", ...changes, [WALK]: `${analysis}.${row}.${column}` });
  }
}

/** ` (rank 1, stream 37)`: rows of one name differ by it. */
function whereText(table: Table, row: number): string {
  const parts = ["rank", "stream"].flatMap((name) => { const value = table.number(row, name); return value === null ? [] : [`${name} ${value}`]; });
  return parts.length === 0 ? "" : ` (${parts.join(", ")})`;
}

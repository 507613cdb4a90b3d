/** Named bars, longest first: for names too long for a chart's axis. Text stays text: it wraps, elides and is read aloud. */
import type { Category } from "../theme/categories.ts";
import { exactCell, formatCell } from "../format/units.ts";
import { h, styled, type Child } from "./dom.ts";
import { categoryClass } from "./swatch.ts";

export interface Bar {
  readonly label: Child;
  readonly value: number;
  readonly unit: string;
  readonly category: Category;
  /** Pieces of the bar from its left, in their own colors; what is left of it has the bar's own. */
  readonly pieces?: readonly { readonly value: number; readonly category: Category }[];
  /** The value as it is written; with its unit if absent. */
  readonly text?: string;
  /** Where a press leads. */
  readonly href?: string;
  /** Said behind the value, in small: calls, sizes. */
  readonly note?: string;
}

export function barList(bars: readonly Bar[], label: string, testId: string): HTMLElement {
  const peak = Math.max(0, ...bars.map((bar) => bar.value));
  return h("ol", { class: "bars", "aria-label": label, "data-testid": testId }, bars.map((bar) => {
    const length = peak > 0 ? (100 * Math.max(0, bar.value)) / peak : 0;
    const fill = h("span", { class: `fill ${categoryClass(bar.category)}` }, (bar.pieces ?? []).map((piece) =>
      styled(h("span", { class: `piece ${categoryClass(piece.category)}` }), { width: `${bar.value > 0 ? Math.min(100, (100 * piece.value) / bar.value).toFixed(2) : 0}%` })));
    return h("li", { "data-value": bar.value },
      h("span", { class: "bar-label" }, bar.href === undefined ? bar.label : h("a", { href: bar.href }, bar.label)),
      h("span", { class: "bar-value", title: exactCell(bar.value, bar.unit) }, bar.text ?? formatCell(bar.value, bar.unit), bar.note ? h("small", {}, ` ${bar.note}`) : null),
      h("span", { class: "track", "aria-hidden": "true" }, styled(fill, { width: `${length.toFixed(2)}%` })));
  }));
}

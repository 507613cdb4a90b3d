/** What the colors and marks mean: the colors below the picture, marks beside the ranks. */
import { h } from "../components/dom.ts";
import { swatch } from "../components/swatch.ts";
import type { Finding, Severity } from "../data/payload.ts";
import { formatDuration } from "../format/units.ts";
import type { Layout } from "./layout.ts";

/** How far the ranks' clocks can be trusted against each other. */
export function corner(layout: Layout): HTMLElement {
  const { aligned, residual, ranks } = layout;
  const [text, title] = ranks.length < 2 ? ["", ""] : !aligned ? ["Clocks not aligned", "The ranks’ clocks could not be aligned: an apparent delay may be a clock offset."]
    : [`Clocks ± ${residual === null ? "?" : formatDuration(residual, 2)}`, "The ranks’ clocks are aligned using their collectives; smaller differences between ranks cannot be resolved."];
  return h("div", { class: "tl-corner", title: title === "" ? null : title }, text);
}

/** On the first screen: without it the colors have no meaning. */
export function legend(layout: Layout): HTMLElement {
  return h("ul", { class: "legend tl-legend", "aria-label": "Color legend", tabindex: "0" }, // it scrolls where it does not fit
    layout.categories.filter(({ category }) => category !== "idle").map(({ category, title }) => h("li", { class: "legend-item" }, swatch(category), title)));
}

/** The highest severity of each rank's findings; findings about many ranks mark none. */
export function marksOf(findings: readonly Finding[]): Map<number, Severity> {
  const order: Record<Severity, number> = { error: 2, warning: 1, info: 0 };
  const marks = new Map<number, Severity>();
  for (const { ranks, severity } of findings) {
    if (severity === "info" || ranks.length > 8) continue;
    for (const rank of ranks) if (order[severity] >= order[marks.get(rank) ?? "info"]) marks.set(rank, severity);
  }
  return marks;
}

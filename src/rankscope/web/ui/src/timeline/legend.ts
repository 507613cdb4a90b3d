/** What the colours and marks mean: the colours above the picture, the rest below it, a thing's own under the pointer. */
import { h, named, styled } from "../components/dom.ts";
import { swatch } from "../components/swatch.ts";
import type { Finding, Severity } from "../data/payload.ts";
import { formatDuration, formatMoment, grouped } from "../format/units.ts";
import type { Hit } from "./hit.ts";
import { laneTitle, type Layout } from "./layout.ts";
import type { Stage } from "./stage.ts";
import { KEYS } from "./toolbar.ts";

/** How far the ranks' clocks can be trusted against each other. */
export function corner(layout: Layout): HTMLElement {
  const { aligned, residual, ranks } = layout;
  const [text, title] = ranks.length < 2 ? ["", ""] : !aligned ? ["Clocks not aligned", "The ranks’ clocks could not be aligned: an apparent delay may be a clock offset."]
    : [`Clocks ± ${residual === null ? "?" : formatDuration(residual, 2)}`, "The ranks’ clocks are aligned using their collectives; smaller differences between ranks cannot be resolved."];
  return h("div", { class: "tl-corner", title: title === "" ? null : title }, text);
}

/** On the first screen: without it the colours have no meaning. */
export function legend(layout: Layout): HTMLElement {
  return h("ul", { class: "legend tl-legend", "aria-label": "Colour legend" },
    layout.categories.filter(({ category }) => category !== "idle").map(({ category, title }) => h("li", { class: "legend-item" }, swatch(category), title)));
}

export function help(): HTMLElement {
  return h("div", { class: "tl-help" },
    h("p", { id: "tl-help", class: "quiet-line" }, "A rank’s summary lane shows compute on top and data movement below; vertical lines mark steps, ● marks a finding. Ctrl + wheel zooms, drag pans, click selects, Shift + drag measures. Keys: W A S D zoom and pan, E selects, F zooms to the selection."),
    h("details", { class: "notes" }, h("summary", {}, "All keyboard shortcuts"), h("dl", { class: "tl-keys" }, KEYS.map(([keys, does]) => h("div", {}, h("dt", {}, keys), h("dd", {}, does))))));
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

/** A tooltip for what is under the pointer. */
export class Tip {
  readonly element = h("div", { class: "tl-tip", hidden: true, "aria-hidden": "true" });
  readonly #layout: Layout;
  readonly #stage: Stage;

  constructor(layout: Layout, stage: Stage) {
    this.#layout = layout;
    this.#stage = stage;
  }

  show(x: number, y: number, hit: Hit, name: string): void {
    this.element.replaceChildren(h("strong", {}, named(name, 120)),
      h("span", {}, hit.start !== null && hit.end !== null ? `${formatDuration(hit.end - hit.start)} at ${formatMoment(hit.start)}` : hit.count > 1 ? `${grouped(hit.count)} events start in this pixel` : ""),
      h("span", {}, named(laneTitle(this.#layout, hit.lane), 80)));
    this.element.hidden = false;
    const left = this.#stage.element.offsetLeft + x;
    const { clientWidth, clientHeight } = this.#stage.box;
    const right = left > clientWidth / 2;
    styled(this.element, { left: right ? "auto" : `${left + 14}px`, right: right ? `${clientWidth - left + 14}px` : "auto", top: `${Math.min(y + 16, clientHeight - 70)}px` });
  }

  hide(): void {
    this.element.hidden = true;
  }
}

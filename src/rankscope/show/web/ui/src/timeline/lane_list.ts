/** The visible events of a lane as a list for screen readers, in order; each can be selected. */
import { button } from "../components/controls.ts";
import { h, named } from "../components/dom.ts";
import { ApiError } from "../data/api.ts";
import { formatDuration, formatMoment } from "../format/units.ts";
import type { Place } from "./layout.ts";
import type { Model } from "./model.ts";

const MOST = 100;

export function laneList(model: Model, lane: number, select: (place: Place) => void): HTMLElement {
  const place = h("div", { class: "tl-scrolled", tabindex: "0", role: "region", "aria-label": "Visible events in this lane" });
  const details = h("details", { class: "notes", "data-testid": "lane-list" }, h("summary", {}, "List of visible events in this lane"), place);
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    const { from, to } = model.window;
    model.api.columns("events", { lanes: lane, from: Math.max(0, Math.floor(from)), to: Math.ceil(to), limit: MOST }).then((file) => {
      const [rows, names, starts, ends] = [file.u32("row"), file.u32("name"), file.f64("start_ns"), file.f64("end_ns")];
      const items = Array.from(rows, (row, i) => h("li", {}, button({ class: "link", "data-row": String(row) }, () => select({ lane, row }), named(model.names.get(names[i] ?? 0) ?? "unnamed", 80)),
        ` ${formatDuration((ends[i] ?? 0) - (starts[i] ?? 0))} at ${formatMoment(starts[i] ?? 0)}`));
      place.replaceChildren(items.length === 0 ? h("p", {}, "No events visible.") : h("ol", { class: "tl-list" }, items),
        ...(file.meta["more"] ? [h("p", { class: "quiet-line" }, `First ${MOST} events; zoom in for more.`)] : []));
    }, (error: unknown) => place.replaceChildren(h("p", {}, error instanceof ApiError ? error.message : "The events could not be listed.")));
  });
  return details;
}

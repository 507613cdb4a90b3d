/** What was open on the host around the selected event, or around its launch: operators and ranges, Python frames, its module. */
import { button } from "../components/controls.ts";
import { h, named, type Child } from "../components/dom.ts";
import type { EventDetail, EventPlace } from "./detail.ts";
import type { Place, Track } from "./layout.ts";
import type { Model } from "./model.ts";

const AT_ONCE = 400;
const MODULE = "nn.Module: ";

/** Innermost first. */
export interface Around {
  readonly host: readonly EventPlace[];
  readonly python: readonly EventPlace[];
}

/** The events that contain it, on its thread and among that thread’s Python frames. */
export async function eventsAround(model: Pick<Model, "api" | "layout" | "names">, detail: Pick<EventDetail, "lane" | "row" | "start_ns" | "end_ns" | "launch">): Promise<Around> {
  const { layout, api, names } = model;
  const at = detail.launch ?? detail;
  const own = layout.tracks[layout.laneTrack[at.lane] ?? 0];
  if (!own || (own.kind !== "thread" && own.kind !== "python")) return { host: [], python: [] };
  const thread = threadOf(own);
  const tracks = layout.tracks.filter((track) => track.rank === own.rank && (track.kind === "thread" || track.kind === "python") && threadOf(track) === thread);
  const lanes = tracks.flatMap((track) => Array.from({ length: track.lanes }, (_, lane) => track.firstLane + lane));
  await names.all;
  const file = await api.columns("events", { lanes: lanes.join(","), from: Math.max(0, Math.floor(at.start_ns)), to: Math.floor(at.start_ns) + 1, limit: AT_ONCE });
  const [lane, row, name, starts, ends] = [file.u32("lane"), file.u32("row"), file.u32("name"), file.f64("start_ns"), file.f64("end_ns")];
  const found = Array.from(row, (number, i): EventPlace => ({ lane: lanes[lane[i]!]!, row: number, name: names.get(name[i]!) ?? "unnamed", start_ns: starts[i]!, end_ns: ends[i]! }))
    .filter((each) => each.start_ns <= at.start_ns && each.end_ns >= at.end_ns && !(each.lane === at.lane && each.row === at.row))
    .sort((a, b) => b.start_ns - a.start_ns || a.end_ns - b.end_ns || b.lane - a.lane);
  const of = (kind: Track["kind"]): EventPlace[] => found.filter((each) => layout.tracks[layout.laneTrack[each.lane] ?? 0]?.kind === kind);
  return { host: of("thread"), python: of("python") };
}

/** The thread of a track, by its title: Python frames have a track of their own. */
function threadOf({ kind, title }: Track): string {
  return kind === "python" ? title.replace(/^Python, /, "") : title;
}

/** As a part of the panel: every line selects its event. */
export function aroundList({ host, python }: Around, select: (place: Place) => void): HTMLElement | null {
  if (host.length + python.length === 0) return null;
  const line = (event: EventPlace): HTMLElement => h("li", {}, button({ class: "link" }, () => select(event), named(event.name, 160)));
  const list = (title: string, events: readonly EventPlace[]): Child => (events.length === 0 ? null : h("details", { class: "notes", open: events.length <= 12 }, h("summary", {}, `${title} (${events.length})`),
    h("div", { class: "tl-scrolled", tabindex: "0", role: "region", "aria-label": title }, h("ol", { class: "tl-stack" }, events.map(line)))));
  const module = python.find(({ name }) => name.startsWith(MODULE));
  return h("section", { "data-testid": "around" },
    module ? h("dl", { class: "tl-facts" }, h("div", {}, h("dt", {}, "Module"), h("dd", {}, button({ class: "link", "data-testid": "around-module" }, () => select(module), named(module.name.slice(MODULE.length), 90))))) : null,
    list("Open on the host, innermost first", host), list("Python frames, innermost first", python));
}

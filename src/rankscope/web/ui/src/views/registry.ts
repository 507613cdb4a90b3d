/** The views in their order; whatever analysis none of them shows gets a table view of its own. */
import type { Payload } from "../data/payload.ts";
import { analysisView } from "./analysis.ts";
import { collectives } from "./collectives.ts";
import { dataLoading } from "./data_loading.ts";
import { diff } from "./diff.ts";
import { distributed } from "./distributed.ts";
import { idle } from "./idle.ts";
import { kernels } from "./kernels.ts";
import { measured } from "./measured.ts";
import { memory } from "./memory.ts";
import { modules } from "./modules.ts";
import { operators } from "./operators.ts";
import { overview } from "./overview.ts";
import { phases } from "./phases.ts";
import { ranks } from "./ranks.ts";
import { run } from "./run.ts";
import { steps } from "./steps.ts";
import { stragglers } from "./stragglers.ts";
import { timeline } from "./timeline.ts";
import type { Group, View } from "./view.ts";

/** Made when it is asked for: a view may ask where an analysis is shown, and be loaded first. */
const own = (): readonly View[] => [
  overview, timeline, run, ranks, stragglers, distributed, collectives, steps, phases, dataLoading, idle, operators, kernels, modules, memory, measured, diff,
];

export const GROUPS: Readonly<Record<Group, string>> = {
  run: "The run", ranks: "Across ranks", step: "In a step", work: "What ran", between: "Between runs", tables: "More tables",
};

/** The views to choose from; a report without a timeline does not offer one. */
export function viewsOf(payload: Payload, withTimeline: boolean): readonly View[] {
  const offered = own().filter((view) => withTimeline || view !== timeline);
  const shown = new Set(own().flatMap(analysesOf));
  const taken = new Set(own().map((view) => view.id));
  const bare = [...payload.analyses].filter(([name]) => !shown.has(name) && !taken.has(name)).map(([name, analysis]) => analysisView(name, analysis));
  return [...offered, ...bare];
}

/** The view of a link: one of those to choose from, else the bare table of an analysis that another view shows. */
export function viewOf(payload: Payload, views: readonly View[], id: string): View | undefined {
  const analysis = payload.analyses.get(id);
  return views.find((view) => view.id === id) ?? (analysis ? analysisView(id, analysis) : undefined);
}

/** Which view shows an analysis. */
export function homeOf(name: string): string {
  const views = own();
  return views.find((view) => view.shows.includes(name))?.id ?? views.find((view) => view.tables?.includes(name))?.id ?? name;
}

function analysesOf(view: View): string[] {
  return [...view.shows, ...(view.tables ?? [])];
}

/** The views in their order; an analysis that none of them shows gets a generic view. */
import type { Payload } from "../data/payload.ts";
import { analysisView } from "./analysis.ts";
import { collectives } from "./collectives.ts";
import { criticalPath } from "./critical_path.ts";
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
import { query } from "./query.ts";
import { ranks } from "./ranks.ts";
import { run } from "./run.ts";
import { steps } from "./steps.ts";
import { stragglers } from "./stragglers.ts";
import { timeline } from "./timeline.ts";
import type { Group, View } from "./view.ts";
import { watch } from "./watch.ts";
import { whatif } from "./whatif.ts";

const OWN: readonly View[] = [
  overview, whatif, timeline, watch, run, ranks, stragglers, distributed, collectives, steps, criticalPath, phases, dataLoading, idle, operators, kernels, modules, memory, measured, diff, query,
];

export const GROUPS: Readonly<Record<Group, string>> = {
  run: "Run", ranks: "Across ranks", step: "Within a step", work: "Model and device", between: "Comparisons", tables: "More tables",
};

/** The views to choose from; a report without a timeline does not offer one, and only a server on a watched job has its state. */
export function viewsOf(payload: Payload, withTimeline: boolean, watched = false): readonly View[] {
  const offered = OWN.filter((view) => (withTimeline || view !== timeline) && (watched || view !== watch));
  const shown = new Set(OWN.flatMap(analysesOf));
  const taken = new Set(OWN.map((view) => view.id));
  // An analysis of another package may have the name of a view.
  const bare = [...payload.analyses].filter(([name]) => !shown.has(name)).map(([name, analysis]) => analysisView(name, analysis, taken.has(name) ? `table-${name}` : name));
  return [...offered, ...bare];
}

/** The view that a link names: one of `views`, else the bare table of an analysis that another view shows. */
export function viewOf(payload: Payload, views: readonly View[], id: string): View | undefined {
  const analysis = payload.analyses.get(id);
  return views.find((view) => view.id === id) ?? (analysis ? analysisView(id, analysis) : undefined);
}

/** The id of the view that shows an analysis. */
export function homeOf(name: string): string {
  return OWN.find((view) => view.shows.includes(name))?.id ?? OWN.find((view) => view.tables?.includes(name))?.id ?? (OWN.some((view) => view.id === name) ? `table-${name}` : name);
}

function analysesOf(view: View): string[] {
  return [...view.shows, ...(view.tables ?? [])];
}

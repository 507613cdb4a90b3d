/** The views in their order; whatever analysis none of them shows gets a table view of its own. */
import type { Payload } from "../data/payload.ts";
import { analysisView } from "./analysis.ts";
import { collectives } from "./collectives.ts";
import { kernels } from "./kernels.ts";
import { overview } from "./overview.ts";
import { ranks } from "./ranks.ts";
import { run } from "./run.ts";
import { steps } from "./steps.ts";
import { timeline } from "./timeline.ts";
import type { View } from "./view.ts";

const OWN: readonly View[] = [overview, timeline, ranks, steps, collectives, kernels, run];

export interface Views {
  readonly own: readonly View[];
  readonly more: readonly View[];
}

/** A report holds no timeline: that view is the server’s. */
export function viewsOf(payload: Payload, served: boolean): Views {
  const shown = new Set(OWN.flatMap((view) => view.shows));
  const taken = new Set(OWN.map((view) => view.id));
  const more = [...payload.analyses].filter(([name]) => !shown.has(name) && !taken.has(name)).map(([name, analysis]) => analysisView(name, analysis));
  return { own: served ? OWN : OWN.filter((view) => view !== timeline), more };
}

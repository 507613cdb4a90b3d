/** The views in their order; whatever analysis none of them shows gets a table view of its own. */
import type { Payload } from "../data/payload.ts";
import { analysisView } from "./analysis.ts";
import { collectives } from "./collectives.ts";
import { kernels } from "./kernels.ts";
import { overview } from "./overview.ts";
import { ranks } from "./ranks.ts";
import { run } from "./run.ts";
import { steps } from "./steps.ts";
import type { View } from "./view.ts";

const OWN: readonly View[] = [overview, ranks, steps, collectives, kernels, run];

export interface Views {
  readonly own: readonly View[];
  readonly more: readonly View[];
}

export function viewsOf(payload: Payload): Views {
  const shown = new Set(OWN.flatMap((view) => view.shows));
  const taken = new Set(OWN.map((view) => view.id));
  const more = [...payload.analyses].filter(([name]) => !shown.has(name) && !taken.has(name)).map(([name, analysis]) => analysisView(name, analysis));
  return { own: OWN, more };
}

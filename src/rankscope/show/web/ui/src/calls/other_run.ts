/** Where a range of one run is in another: the step with the same number, else the same time since the start. */
import type { Api } from "../data/api.ts";
import { readLayout, type Layout } from "../timeline/layout.ts";
import type { Window } from "../timeline/window.ts";

export async function otherWindow(api: Api, own: Layout, window: Window): Promise<Window> {
  const other = readLayout(await api.json("timeline"));
  return sameStep(own, other, window) ?? window;
}

/** The step that most of the range is in, at the same place and of the same length within it. */
export function sameStep(own: Layout, other: Layout, window: Window): Window | null {
  const steps = own.ranks.flatMap((rank) => rank.steps.map((step) => ({ ...step, covered: Math.min(step.end, window.to) - Math.max(step.start, window.from) })));
  const best = steps.filter(({ step, covered }) => step !== null && covered > 0).sort((a, b) => b.covered - a.covered)[0];
  if (!best) return null;
  const span = (layout: Layout): Window | null => {
    const found = layout.ranks.flatMap((rank) => rank.steps.filter(({ step }) => step === best.step));
    return found.length === 0 ? null : { from: Math.min(...found.map(({ start }) => start)), to: Math.max(...found.map(({ end }) => end)) };
  };
  const [here, there] = [span(own), span(other)];
  if (!here || !there) return null;
  // The whole step here is the whole step there, though it may take longer.
  const whole = window.from <= best.start && window.to >= best.end;
  if (whole) return there;
  const from = there.from + (window.from - here.from);
  return { from: Math.max(0, Math.round(from)), to: Math.round(from + (window.to - window.from)) };
}

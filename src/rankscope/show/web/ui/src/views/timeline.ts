import { h, named } from "../components/dom.ts";
import { emptyState, errorState, workingState } from "../components/notes.ts";
import { ApiError } from "../data/api.ts";
import type { Diagnosis, Finding } from "../data/payload.ts";
import { readLayout } from "../timeline/layout.ts";
import { moved, type RawLayout } from "../timeline/moved.ts";
import { Timeline } from "../timeline/timeline.ts";
import type { View, ViewContext } from "./view.ts";

export const timeline: View = {
  id: "timeline",
  title: "Timeline",
  group: "run",
  question: "",
  shows: [],
  render(context) {
    const { served } = context;
    if (!served) return [emptyState("This report contains no timeline.", "`rankscope serve DIR` shows it.")];
    const place = h("div", { class: "tl-place" }, workingState("Loading the timeline …", null));
    let shown: Timeline | null = null;
    let lanes = -1;
    let generation = -1;
    let before: RawLayout | null = null;
    let version = -1;
    let asking = false;
    let left = false;
    let findings: readonly Finding[] | null = null;
    let diagnosis: Diagnosis | null = null;

    /** Ranks arrive one by one while the server works: with each the picture is rebuilt, at the same place. */
    async function fetchLayout(): Promise<void> {
      if (asking || left || (served?.state.version === version && lanes >= 0)) return;
      asking = true;
      try {
        version = served?.state.version ?? 0;
        const raw = await served!.api.json<RawLayout>("timeline");
        const layout = readLayout(raw);
        if (left || (layout.laneTrack.length === lanes && served!.generation === generation)) return;
        const focus = keptFocus(shown?.element ?? null);
        shown?.end();
        // The run was read again, with more files: the view stays on what it showed.
        if (before && served!.generation !== generation) context.router.note(moved(context.router.place().params, before, raw));
        lanes = layout.laneTrack.length;
        generation = served!.generation;
        before = raw;
        const without = layout.laneEvents.every((count) => count === 0) && !served!.working;
        shown = lanes === 0 || without ? null : new Timeline(contextNow(), served!.api, layout);
        findings = null;
        tellFindings();
        place.replaceChildren(shown?.element ?? (served?.working ? workingState("Building the timeline …", null)
          : served!.leftOut.length > 0 ? emptyState("The timeline does not fit in this file.", "`rankscope serve DIR` shows it, and so does a report with a larger `--max-mb`.")
          : emptyState("There are no events to draw.", "Memory snapshots have none: see Memory. Of traces the findings report what is wrong. Record at least one active step, with `rankscope.Profiler` or `torch.profiler`.")));
        focus(shown?.element ?? null);
      } catch (error) {
        if (!left && !shown) place.replaceChildren(errorState(error instanceof ApiError ? error.message : "The timeline cannot be shown.", error instanceof ApiError ? error.hint : String(error instanceof Error ? error.message : error).slice(0, 300)));
      } finally {
        asking = false;
      }
    }
    function tellFindings(): void {
      if (!shown || !served || (findings === served.payload.findings && diagnosis === served.payload.diagnosis)) return;
      ({ findings, diagnosis } = served.payload);
      shown.findings(findings, diagnosis?.stragglers.ranks ?? []);
    }
    const contextNow = (): ViewContext => ({ ...context, place: context.router.place() });
    const stop = served.onChange(() => {
      tellFindings();
      void fetchLayout();
    });
    context.onLeave(() => {
      left = true;
      stop();
      shown?.end();
    });
    void fetchLayout();
    const { leftOut } = served;
    return leftOut.length === 0 ? [place] : [place, h("details", { class: "tl-left-out", "data-testid": "left-out" },
      h("summary", {}, "Some data is not in this file, but shown by ", h("code", {}, "rankscope serve")), h("ul", {}, leftOut.map((what) => h("li", {}, named(what, 300)))))];
  },
};

/** The picture is rebuilt while it is in use: the focused element gets the focus again, with its text. */
function keptFocus(before: HTMLElement | null): (after: HTMLElement | null) => void {
  const active = document.activeElement;
  if (!(active instanceof HTMLElement) || !before?.contains(active)) return () => undefined;
  const name = active.dataset["testid"] ?? "timeline-stage";
  const typed = active instanceof HTMLInputElement ? active.value : null;
  return (after) => {
    const next = after?.querySelector<HTMLElement>(`[data-testid="${CSS.escape(name)}"]`);
    if (next instanceof HTMLInputElement && typed !== null) next.value = typed;
    next?.focus({ preventScroll: true });
  };
}

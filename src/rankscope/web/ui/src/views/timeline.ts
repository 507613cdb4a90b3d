import { h } from "../components/dom.ts";
import { emptyState, errorState, workingState } from "../components/notes.ts";
import { ApiError } from "../data/api.ts";
import { readLayout } from "../timeline/layout.ts";
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
    if (!served) return [emptyState("A report holds no timeline.", "`rankscope serve DIR` shows it.")];
    const place = h("div", { class: "tl-place" }, workingState("Fetching the timeline …", null));
    let shown: Timeline | null = null;
    let lanes = -1;
    let version = -1;
    let asking = false;
    let left = false;

    /** Ranks come one by one while the server is at work: with every new one the picture is made anew, in the same place. */
    async function fetchLayout(): Promise<void> {
      if (asking || left || (served?.state.version === version && lanes >= 0)) return;
      asking = true;
      try {
        version = served?.state.version ?? 0;
        const layout = readLayout(await served?.api.json("timeline"));
        if (left || layout.laneTrack.length === lanes) return;
        lanes = layout.laneTrack.length;
        shown?.end();
        shown = lanes === 0 ? null : new Timeline(contextNow(), served!.api, layout, served!.payload.findings);
        place.replaceChildren(shown?.element ?? (served?.working ? workingState("Making the timeline …", null)
          : emptyState("No event could be read.", "The findings say what is wrong with the files; record at least one active step.")));
      } catch (error) {
        if (!left && !shown) place.replaceChildren(errorState(error instanceof ApiError ? error.message : "The timeline cannot be drawn.", error instanceof ApiError ? error.hint : String(error instanceof Error ? error.message : error).slice(0, 300)));
      } finally {
        asking = false;
      }
    }
    const contextNow = (): ViewContext => ({ ...context, place: context.router.place() });
    const stop = served.onChange(() => void fetchLayout());
    context.onLeave(() => {
      left = true;
      stop();
      shown?.end();
    });
    void fetchLayout();
    return [place];
  },
};

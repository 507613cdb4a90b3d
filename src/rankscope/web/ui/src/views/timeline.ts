import { h } from "../components/dom.ts";
import { emptyState, errorState, workingState } from "../components/notes.ts";
import { ApiError } from "../data/api.ts";
import { readLayout } from "../timeline/layout.ts";
import { Timeline } from "../timeline/timeline.ts";
import type { View } from "./view.ts";

export const timeline: View = {
  id: "timeline",
  title: "Timeline",
  question: "",
  shows: [],
  render(context) {
    const { served } = context;
    const place = h("div", { class: "tl-place" }, workingState("Fetching the timeline …", null));
    if (!served) return [emptyState("A report holds no timeline.", "`rankscope serve DIR` shows it.")];
    let left = false;
    context.onLeave(() => { left = true; });
    served.api.json("timeline").then((raw) => {
      if (left) return;
      const layout = readLayout(raw);
      place.replaceChildren(layout.ranks.length === 0 || layout.laneTrack.length === 0
        ? emptyState("No event could be read.", "The findings say what is wrong with the files; record at least one active step.")
        : new Timeline(context, served.api, layout, served.payload.findings).element);
    }).catch((error: unknown) => {
      if (!left) place.replaceChildren(errorState(error instanceof ApiError ? error.message : "The timeline cannot be drawn.", error instanceof ApiError ? error.hint : String(error instanceof Error ? error.message : error).slice(0, 300)));
    });
    return [place];
  },
};

import { heatPlaces } from "./heat.ts";
import { stackedDeviceTime } from "./ranks.ts";
import { inline } from "../components/doc_text.ts";
import { h, named } from "../components/dom.ts";
import { findingsList } from "../components/findings.ts";
import { headline } from "../components/headline.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { waterfall } from "../components/waterfall.ts";
import { present, type View, type ViewContext } from "./view.ts";

/** With these, the findings' neighbors fit on a screen. */
const MAP_PX = 128;
const BARS_PX = 152;

export const overview: View = {
  id: "overview",
  title: "Overview",
  group: "run",
  question: "Where does the time go, and which rank delays the others?",
  answers: ["overview"],
  shows: ["overview"],
  wants: ["whatif", "device_time", "step_time", "stragglers"],
  render(context) {
    const table = context.table("overview");
    const ranks = stackedDeviceTime(context, BARS_PX);
    const heat = context.served && heatPlaces(context, context.served, MAP_PX);
    const comes = context.served?.working === true;
    const replayed = context.table("whatif");
    return present([
      replayed && waterfall(context, replayed),
      h("div", { class: "overview-columns" },
        h("section", { "aria-labelledby": "findings-title" }, h("div", { class: "section-head" }, h("h3", { id: "findings-title" }, "Findings")), findingsList(context), notJudged(context)),
        h("div", {}, heat?.map ?? null, h("section", { "aria-labelledby": "ranks-title" },
          h("div", { class: "section-head" }, h("h3", { id: "ranks-title" }, "Time per rank, entire recording"), ranks && h("a", { href: context.router.href("ranks") }, "Table and definitions")),
          ranks ?? (comes ? h("p", { class: "quiet-box" }, "Device time is still being computed.") : emptyState("No device time recorded.", "No trace in this run contains device events. See Steps for the host’s activity."))))),
      table ? headline(table, context.payload.diagnosis) : context.served
        ? emptyState("No overview for this run.", "It needs at least one readable rank. The findings report what is wrong with the files.")
        : emptyState("This report contains no overview.", "Regenerate it with `rankscope report DIR`. The overview needs at least one readable rank."),
      heat?.times ?? null,
      tables(context, [{ name: "overview" }]),
    ]);
  },
};

/** What these traces cannot tell, why, and what to record. */
function notJudged(context: ViewContext): HTMLElement | null {
  const open = context.payload.diagnosis?.not_judged ?? [];
  if (open.length === 0) return null;
  return h("details", { class: "notes", "data-testid": "not-judged" }, h("summary", {}, `What these traces cannot tell (${open.length})`),
    h("dl", {}, open.map(({ what, why, record }) => h("div", {}, h("dt", {}, named(what, 200)), h("dd", {}, named(why, 400), record === "" ? "." : ". ", inline(record))))));
}

import { heatSections } from "./heat.ts";
import { stackedDeviceTime } from "./ranks.ts";
import { findingsList } from "../components/findings.ts";
import { headline } from "../components/headline.ts";
import { emptyState } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { h } from "../components/dom.ts";
import type { View } from "./view.ts";

export const overview: View = {
  id: "overview",
  title: "Overview",
  question: "Where does the time go, and which rank holds the others up?",
  shows: ["overview"],
  wants: ["device_time", "step_time"],
  render(context) {
    const table = context.table("overview");
    const ranks = stackedDeviceTime(context);
    const comes = context.served?.working === true;
    return [
      table ? headline(table) : context.served
        ? emptyState("There is no overview of this run.", "It is made from every rank that could be read: the findings say what is wrong with the files.")
        : emptyState("This report holds no overview.", "Write it again with `rankscope report DIR`: the overview is made from every rank that could be read."),
      h("section", { "aria-labelledby": "findings-title" }, h("h3", { id: "findings-title" }, "Findings"), findingsList(context)),
      context.served && heatSections(context, context.served),
      h("section", { "aria-labelledby": "ranks-title" },
        h("div", { class: "section-head" }, h("h3", { id: "ranks-title" }, "Time on each rank"), ranks && h("a", { href: context.router.href("ranks") }, "Table and definitions")),
        ranks ?? (comes ? h("p", { class: "quiet-box" }, "The ranks’ device time is still being worked out.") : emptyState("No rank’s device time is known.", "No trace in this run holds device events. What the host did stands under Steps."))),
      table && h("details", { class: "notes" }, h("summary", {}, "Every headline number"), tableView(context, { name: "overview", table, caption: "Overview" })),
    ].filter((node): node is HTMLElement => node !== null);
  },
};

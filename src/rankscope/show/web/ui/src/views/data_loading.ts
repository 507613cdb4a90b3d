import { byStep } from "../components/by_step.ts";
import { inline } from "../components/doc_text.ts";
import { h } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { present, type View } from "./view.ts";

export const dataLoading: View = {
  id: "data_loading",
  title: "Data loading",
  group: "step",
  question: "How long does each step wait for data?",
  answers: ["data_loading"],
  shows: ["data_loading"],
  wants: ["overview"],
  render(context) {
    const table = context.table("data_loading");
    if (!table) {
      return [emptyState("No data loading recorded.", "Data loading is detected from `DataLoader` ranges and from your own ranges (`record_function(\"load_data\")`), in steps marked with `.step()`.")];
    }
    const loads = table.hasAny("loading_ns");
    return present([
      loads ? byStep(context, "loading", table, [
        { testId: "chart-loading", title: "Time in the loader", about: "Time in data loading ranges.", parts: [["loading_ns", "data_loading", "Loading"]], whole: { column: "window_ns", label: "Window" } },
        { testId: "chart-loading-exposed", title: "Exposed data loading", about: "Time in which the device only waits for data.", parts: [["exposed_ns", "waiting", "Exposed"]], whole: { column: "window_ns", label: "Window" } },
      ], "steps", "exposed_ns") : h("p", { class: "quiet-box" }, inline("No range in these traces marks data loading: it took no time, or it is not annotated. PyTorch annotates a loop over a `DataLoader` automatically; around your own loader, use `with torch.profiler.record_function(\"load_data\")`.")),
      loads && tables(context, [{ name: "data_loading", open: true, sort: { column: "exposed_ns", descending: true } }]),
    ]);
  },
};

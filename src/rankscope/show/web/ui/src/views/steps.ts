import { byStep, type Part } from "../components/by_step.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { present, type View } from "./view.ts";

/** In the order of their precedence; they sum to `window_ns` exactly. */
const PARTS: readonly Part[] = [
  ["compute_ns", "compute", "Compute"],
  ["exposed_communication_ns", "communication", "Exposed communication"],
  ["exposed_memcpy_ns", "memory", "Exposed memory copies"],
  ["exposed_memset_ns", "memset", "Exposed memory sets"],
  ["runtime_ns", "runtime", "Device runtime calls"],
  ["data_loading_ns", "data_loading", "Data loading"],
  ["host_op_ns", "host_op", "Host operators"],
  ["other_ns", "other", "Other"],
];

export const steps: View = {
  id: "steps",
  title: "Steps",
  group: "step",
  question: "Where does step time go, and is it the same on every rank?",
  answers: ["step_time"],
  shows: ["step_time"],
  wants: ["overview"],
  render(context) {
    const table = context.table("step_time");
    if (!table) {
      return [emptyState("No steps recorded.", "No trace in this run contains steps. Call `.step()` once per iteration, and record at least one active step.")];
    }
    return present([
      byStep(context, "steps", table, [{ testId: "chart-step-time", about: "Step time breakdown.", parts: PARTS, whole: { column: "window_ns", label: "Window" } }]),
      tables(context, [{ name: "step_time", open: true }]),
    ]);
  },
};

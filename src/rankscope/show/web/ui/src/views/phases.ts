import { answer } from "../components/answer.ts";
import { barList } from "../components/bar_list.ts";
import { byStep, type Part } from "../components/by_step.ts";
import { inline } from "../components/doc_text.ts";
import { h, named, type Child } from "../components/dom.ts";
import { eventsHref, returningLink } from "../components/event_link.ts";
import { emptyState } from "../components/notes.ts";
import { rankChoice } from "../components/rank_choice.ts";
import { tables } from "../components/tables.ts";
import { swatch } from "../components/swatch.ts";
import type { Table } from "../data/table.ts";
import { formatBytes, formatRatio } from "../format/units.ts";
import { present, type View, type ViewContext } from "./view.ts";

const HOST: readonly Part[] = [
  ["forward_ns", "forward", "Forward"], ["backward_ns", "backward", "Backward"], ["optimizer_ns", "optimizer", "Optimizer"],
  ["in_loader_ns", "data_loading", "Data loading"], ["sync_ns", "waiting", "Waiting"], ["no_phase_ns", "other", "Other"],
];
const DEVICE: readonly Part[] = [
  ["forward_device_ns", "forward", "Forward"], ["backward_device_ns", "backward", "Backward"], ["optimizer_device_ns", "optimizer", "Optimizer"],
  ["data_loading_device_ns", "data_loading", "Data loading"], ["communication_device_ns", "communication", "Communication"], ["other_device_ns", "other", "Other"],
];
const TOP = 24;

export const phases: View = {
  id: "phases",
  title: "Phases, FSDP, buckets",
  group: "step",
  question: "How long do forward, backward and optimizer take, and how much FSDP and DDP communication is exposed?",
  answers: ["phases"],
  shows: ["phases", "ddp_buckets", "fsdp"],
  wants: ["overview"],
  tables: ["recompute", "pipeline_bubble"],
  render(context) {
    const [steps, buckets, fsdp] = [context.table("phases"), context.table("ddp_buckets"), context.table("fsdp")];
    const known = steps?.hasAny(...HOST.slice(0, 4).map(([column]) => column), ...DEVICE.map(([column]) => column)) ? steps : null;
    return present([
      known ? byStep(context, "phases", known, [
        { testId: "chart-phases", title: "On the host", about: "The host’s time by phase.", parts: HOST, whole: { column: "wall_ns", label: "Wall time" } },
        ...(known.hasAny(...DEVICE.map(([column]) => column)) ? [{ testId: "chart-phases-device", title: "On the device", about: "The device’s time by the phase that launched it.", parts: DEVICE }] : []),
      ]) : emptyState("No phases recorded.", "Phases are detected from host operators and `Optimizer.step`: record CPU activity, and call `.step()` once per iteration."),
      part(context, "ddp_buckets", "DDP buckets", buckets, bucketBars, "No DDP gradient all-reduce in these traces.", "It appears when a model wrapped in `DistributedDataParallel` runs its backward pass in a recorded step."),
      part(context, "fsdp", "FSDP collectives", fsdp, fsdpBars, "No FSDP collectives in these traces.", "They appear when a model wrapped with `fully_shard` or `FullyShardedDataParallel` runs in a recorded step."),
      tables(context, [{ name: "phases", open: known !== null }, { name: "ddp_buckets" }, { name: "fsdp" }, { name: "recompute" }, { name: "pipeline_bubble" }]),
    ]);
  },
};

function part(context: ViewContext, name: string, title: string, table: Table | null, draw: (context: ViewContext, table: Table) => HTMLElement, why: string, how: string): HTMLElement {
  const headline = context.payload.analyses.get(name)?.headline;
  return h("section", { "aria-labelledby": `part-${name}` }, h("h3", { id: `part-${name}` }, title), headline ? answer(name, headline) : null,
    table ? draw(context, table) : h("p", { class: "quiet-box" }, inline(`${why} ${how}`)));
}

/** One rank's step in its middle: each bucket's all-reduce, what of it the backward hides. */
function bucketBars(context: ViewContext, table: Table): HTMLElement {
  const choice = rankChoice(context, "buckets", table);
  const rows = oneStep(table, choice.rows);
  const bars = rows.map((row) => {
    const [size, share] = [table.number(row, "bytes"), table.number(row, "start_share")];
    return {
      label: [linked(context, "ddp_buckets", table, row, `Bucket ${String(table.cell(row, "bucket") ?? "?")}`), size === null ? null : h("small", {}, ` · ${formatBytes(size)}`), share === null ? null : h("small", {}, share > 1 ? " · starts after backward" : ` · starts at ${formatRatio(share)} of backward`)],
      ...hiddenBar(table, row),
    };
  });
  return figure(choice.control, `Buckets of ${whose(table, rows)}`, bars, "bars-buckets");
}

function fsdpBars(context: ViewContext, table: Table): HTMLElement {
  const choice = rankChoice(context, "fsdp", table);
  const rows = table.sorted(oneStep(table, choice.rows), { column: "exposed_ns", descending: true });
  const bars = rows.slice(0, TOP).map((row) => ({
    label: [linked(context, "fsdp", table, row, named(String(table.cell(row, "module") ?? "unnamed"), 60)), h("small", {}, " · ", named(String(table.cell(row, "collective") ?? ""), 30), ` · ${String(table.cell(row, "phase") ?? "")}${table.cell(row, "prefetched") === true ? " · prefetched" : ""}`)],
    ...hiddenBar(table, row),
  }));
  return figure(choice.control, `Most exposed collectives of ${whose(table, rows)}`, bars, "bars-fsdp");
}

/** A bar's name as a link to its event, where it has one. */
function linked(context: ViewContext, analysis: string, table: Table, row: number, name: Child): Child {
  const href = eventsHref(context, analysis, table, row);
  return href === null ? name : returningLink(context, href, `bars-${analysis}.${row}`, { class: "row-link" }, name);
}

function hiddenBar(table: Table, row: number): { value: number; unit: string; category: "communication"; pieces?: { value: number; category: "overlap" }[]; note?: string } {
  const [hidden, exposed] = [table.number(row, "hidden_ns"), table.number(row, "exposed_ns")];
  return {
    value: table.number(row, "duration_ns") ?? 0, unit: "ns", category: "communication",
    ...(hidden === null ? {} : { pieces: [{ value: hidden, category: "overlap" as const }] }), ...(exposed === null ? {} : { note: exposed === 0 ? "fully overlapped" : "" }),
  };
}

/** The rows of the step in the middle of those that there are, of the first rank among the rows. */
function oneStep(table: Table, rows: readonly number[]): number[] {
  const rank = table.cell(rows[0] ?? 0, "rank");
  const own = rows.filter((row) => table.cell(row, "rank") === rank);
  const steps = [...new Set(own.map((row) => table.cell(row, "step")).filter((step) => step !== null))];
  const step = steps[Math.floor((steps.length - 1) / 2)] ?? null;
  return own.filter((row) => table.cell(row, "step") === step);
}

function whose(table: Table, rows: readonly number[]): string {
  const [rank, step] = [table.cell(rows[0] ?? 0, "rank"), table.cell(rows[0] ?? 0, "step")];
  return `rank ${String(rank ?? "?")}${step === null ? "" : ` in step ${String(step)}`}`;
}

function figure(control: HTMLElement | null, title: string, bars: Parameters<typeof barList>[0], testId: string): HTMLElement {
  return h("div", {}, control, h("figure", { class: "figure" }, h("figcaption", {}, title),
    h("ul", { class: "legend" }, h("li", { class: "legend-item" }, swatch("overlap"), "Overlapped with compute"), h("li", { class: "legend-item" }, swatch("communication"), "Exposed or unknown")), barList(bars, title, testId)));
}

/** Wait and lateness of every rank in every step, and how long its steps took: the server's numbers, drawn. */
import { heatMap } from "../charts/heat.ts";
import { stepDots } from "../charts/step_dots.ts";
import { selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { emptyState, workingState } from "../components/notes.ts";
import { tableView } from "../components/table_view.ts";
import { ApiError } from "../data/api.ts";
import { Table } from "../data/table.ts";
import type { AnalysisPayload, Cell } from "../data/payload.ts";
import type { Source } from "../data/source.ts";
import { leadTo, type ViewContext } from "./view.ts";

interface Heat {
  readonly ranks: readonly number[];
  readonly steps: readonly (number | null)[];
  readonly windows: readonly number[] | null;
  readonly waited_ns: readonly (number | null)[];
  readonly wait_ns: readonly (number | null)[];
  readonly lateness_ns: readonly (number | null)[];
  readonly step_ns: readonly (number | null)[];
  readonly doc: string;
}

/** Pixels: the default height of all rows together, and the least height of one. */
const [TALL, LEAST_ROW_PX] = [600, 2];
const KINDS = [
  { value: "waited_ns", label: "wait caused on other ranks", ink: "--error", doc: "time the other ranks waited for this rank; none if it was late because it was itself waiting" },
  { value: "lateness_ns", label: "lateness", ink: "--error", doc: "how much later than the others the rank arrived at a collective, at most" },
  { value: "wait_ns", label: "wait", ink: "--cat-communication", doc: "time the rank waited in collectives for other ranks" },
  { value: "step_ns", label: "step time", ink: "--cat-compute", doc: "duration of the rank's step" },
] as const;

/** Where the two pictures will be. */
export interface HeatPlaces {
  readonly map: HTMLElement;
  readonly times: HTMLElement;
}

/**
 * Ranks by step, and the steps' times.
 * @param tall how high the rows of the map may be together, in pixels
 */
export function heatPlaces(context: ViewContext, served: Source, tall?: number): HeatPlaces {
  const [map, times] = [h("div", { class: "heat-place" }), h("div", { class: "heat-place" })];
  if (!served.isReady("heat")) {
    if (served.working) map.append(workingState("Comparing the ranks step by step …", null));
    return { map, times };
  }
  map.append(workingState("Loading ranks and steps …", null));
  let left = false;
  context.onLeave(() => { left = true; });
  served.api.json<Heat>("heat").then((heat) => {
    if (left) return;
    const empty = heat.ranks.length === 0 || heat.steps.length === 0;
    map.replaceChildren(...(empty ? [] : mapSection(context, heat, tall)));
    times.replaceChildren(...(empty ? [] : timesSection(context, heat)));
  }).catch((error: unknown) => { if (!left) map.replaceChildren(emptyState(error instanceof ApiError ? error.message : "Ranks and steps cannot be shown.", error instanceof ApiError ? error.hint : "Reload the page.")); });
  return { map, times };
}

function mapSection(context: ViewContext, heat: Heat, tall: number | undefined): HTMLElement[] {
  const known = KINDS.filter(({ value }) => heat[value].some((amount) => amount !== null));
  const asked = context.place.params.get("heat");
  // The most informative one is shown first: without late ranks the waits, else the step times.
  const kind = known.find(({ value }) => value === asked) ?? known.find(({ value }) => heat[value].some((amount) => (amount ?? 0) > 0)) ?? known[0];
  if (!kind || heat.ranks.length < 2) return [];
  const culprits = context.payload.diagnosis?.stragglers.ranks ?? [];
  // Red says that a rank delays the others: only the diagnosis says that.
  const ink = kind.ink === "--error" && culprits.length === 0 ? "--cat-other" : kind.ink;
  const blocks = blocksOf(heat.ranks.length, tall ?? TALL);
  const cells = blocks.flatMap((block) => heat.steps.map((_, column) => largestIn(heat[kind.value], block, column, heat.steps.length)));
  const cell = (row: number, column: number): Largest => cells[row * heat.steps.length + column] ?? { index: 0, value: null };
  const rankOf = (row: number, column: number): number => heat.ranks[cell(row, column).index] ?? 0;
  const rowName = ({ from, to }: Block): string => { const culprit = culprits.find((rank) => heat.ranks.indexOf(rank) >= from && heat.ranks.indexOf(rank) < to); return `Rank ${culprit ?? heat.ranks[from]}`; };
  const among = ({ from, to }: Block): string => (to - from > 1 ? ` (most of ranks ${heat.ranks[from]}–${heat.ranks[to - 1]})` : "");
  return [h("section", { "aria-labelledby": "heat-title" },
    h("div", { class: "section-head" }, h("h3", { id: "heat-title" }, "Ranks by step"),
      selector("heat-kind", "Show:", known.map(({ value, label }) => ({ value, label })), kind.value, (value) => context.router.update({ heat: value }))),
    h("div", { class: "figure" }, heatMap(context, {
      label: `Ranks by step: ${kind.label}${blocks.length < heat.ranks.length ? `; each row is the most of ${(blocks[0]?.to ?? 1)} ranks` : ""}`, testId: "heat", values: cells.map(({ value }) => value), ink, ...(tall === undefined ? {} : { tall }),
      named: culprits.map((rank) => heat.ranks.indexOf(rank)).filter((at) => at >= 0).map((at) => blocks.findIndex(({ to }) => at < to)),
      rows: blocks.map(rowName), columns: heat.steps.map((step, index) => columnLabel(heat, step, index)),
      what: (row, column) => `Rank ${rankOf(row, column)}${blocks[row] ? among(blocks[row]) : ""}, ${(heat.steps[column] ?? null) === null ? "entire trace" : `step ${heat.steps[column]}`}${heat.windows ? ` of window ${heat.windows[column]}` : ""}`,
      onPick: (row, column) => open(context, rankOf(row, column), heat.steps[column] ?? null),
    }),
      table(context, heat)))];
}

/** Consecutive ranks, of the row of a map that has no room for a row of each. */
export interface Block { readonly from: number; readonly to: number }

interface Largest { readonly index: number; readonly value: number | null }

/** As many ranks to a row as rows of two pixels need in a height. */
export function blocksOf(ranks: number, tall: number): Block[] {
  const size = Math.max(1, Math.ceil((ranks * LEAST_ROW_PX) / tall));
  return Array.from({ length: Math.ceil(ranks / size) }, (_, block) => ({ from: block * size, to: Math.min(ranks, (block + 1) * size) }));
}

/** The rank with the largest amount of a block, in one column. */
export function largestIn(values: readonly (number | null)[], { from, to }: Block, column: number, columns: number): Largest {
  let best: Largest = { index: from, value: values[from * columns + column] ?? null };
  for (let index = from + 1; index < to; index++) {
    const value = values[index * columns + column] ?? null;
    if (value !== null && (best.value === null || value > best.value)) best = { index, value };
  }
  return best;
}

/** The step's number; of the first one of each window, where windows number their steps alike, also the window. */
function columnLabel(heat: Heat, step: number | null, index: number): string {
  if (step === null) return "–";
  if (heat.windows && heat.windows[index] !== heat.windows[index - 1]) return `Window ${heat.windows[index]}: ${step}`;
  return index === 0 ? `Step ${step}` : String(step);
}

function timesSection(context: ViewContext, heat: Heat): HTMLElement[] {
  if (heat.step_ns.every((amount) => amount === null)) return [];
  const straggler = context.payload.diagnosis?.stragglers.ranks[0] ?? null;
  const highlight = straggler === null ? null : { rank: straggler, why: "straggler" };
  return [h("section", { "aria-labelledby": "step-times-title" }, h("h3", { id: "step-times-title" }, "Step time by step"),
    h("div", { class: "figure" }, stepDots(context, heat.ranks, heat.steps, heat.step_ns, highlight, (rank, step) => open(context, rank, step))))];
}

function open(context: ViewContext, rank: number, step: number | null): void {
  location.hash = leadTo(context, rank, step) ?? location.hash;
}

function table(context: ViewContext, heat: Heat): HTMLElement {
  const data: Record<string, Cell[]> = { rank: [], step: [], waited_ns: [...heat.waited_ns], lateness_ns: [...heat.lateness_ns], wait_ns: [...heat.wait_ns], step_ns: [...heat.step_ns] };
  if (heat.windows) data["window"] = [];
  for (const rank of heat.ranks) heat.steps.forEach((step, index) => { data["rank"]?.push(rank); data["step"]?.push(step); data["window"]?.push(heat.windows?.[index] ?? null); });
  const columns = { rank: { unit: "", doc: "the rank" }, step: { unit: "", doc: "the step" }, ...(heat.windows ? { window: { unit: "", doc: "index of the rank's trace file, from 0" } } : {}), ...Object.fromEntries(KINDS.map(({ value, doc }) => [value, { unit: "ns", doc }])) };
  const analysis: AnalysisPayload = { title: "Ranks and steps", doc: heat.doc, columns, data, truncated: null };
  const details = h("details", { class: "notes" }, h("summary", {}, "Show as table"));
  details.addEventListener("toggle", () => { if (details.children.length === 1) details.append(tableView(context, { name: "heat", table: new Table(analysis), caption: analysis.title })); });
  return details;
}

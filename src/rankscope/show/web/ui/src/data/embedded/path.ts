/** The critical path of a step (`api/path`), from the paths of all steps in a report. */
import { ApiError } from "../api.ts";
import { ColumnFile } from "../column_file.ts";
import { unfolded } from "./blocks.ts";
import type { RankEvents } from "./rank_events.ts";
import type { EmbeddedRun } from "./run.ts";

interface Step {
  readonly step: number | null;
  /** Its start and end on each rank. */
  readonly windows: readonly (readonly [number, number])[];
  /** How many parts its path has; null where it has none. */
  readonly parts: number | null;
}

/** Where a part ends; else after its duration. */
const [OWN_END, NEXT_STARTS] = [0, 1];

/** @param rank - whose own path; null for that across all ranks. */
export async function pathOf(run: EmbeddedRun, at: number, rank: number | null): Promise<ColumnFile> {
  const name = rank === null ? "path" : `path-${rank}`;
  if (!run.blocks.has(name)) {
    throw new ApiError(404, rank === null ? "This report does not contain the critical path." : `This report does not contain the critical path of rank ${rank} alone.`,
      "`rankscope serve DIR` draws it; the Critical path view has its times.");
  }
  const block = await run.blocks.numbers(name);
  const steps = (block.meta["steps"] ?? []) as readonly Step[];
  const chosen = nearest(steps, at);
  const [own, first] = [steps[chosen]!, steps.slice(0, chosen).reduce((sum, { parts }) => sum + (parts ?? 0), 0)];
  if (own.parts === null) throw new ApiError(404, "There is no critical path here.", "It needs complete steps; across ranks, collectives.");
  const last = first + own.parts;
  const [ranks, gaps, until, recorded] = [block.steps("rank"), block.of("gap"), block.of("until"), block.of("recorded")];
  const [durations, events] = [block.of("duration"), block.steps("event")];
  const read = new Map<number, RankEvents>();
  for (const plan of run.plans) if (ranks.includes(plan.rank)) read.set(plan.rank, await run.rank(plan));
  // The number of each part's event; −1 where nothing is recorded.
  let next = 0;
  const number = Int32Array.from(recorded, (is, i) => (is === 1 ? read.get(ranks[i]!)!.byStart[events[next++]!]! : -1));
  const [start, end] = [new Float64Array(own.parts), new Float64Array(own.parts)];
  const [lane, row] = [new Int32Array(own.parts).fill(-1), new Uint32Array(own.parts)];
  for (let i = 0, clock = 0, timed = 0; i < last; i++) {
    const begin = clock + unfolded(gaps[i]!);
    const rank = read.get(ranks[i]!);
    clock = until[i] === OWN_END ? rank!.end[number[i]!]! : until[i] === NEXT_STARTS ? read.get(ranks[i + 1]!)!.start[number[i + 1]!]! : begin + durations[timed++]!;
    if (i < first) continue;
    start[i - first] = begin;
    end[i - first] = clock;
    if (!rank || number[i]! < 0) continue;
    const place = rank.place(number[i]!);
    lane[i - first] = rank.plan.firstLane + place.lane;
    row[i - first] = place.row;
  }
  return new ColumnFile({
    meta: { step: own.step, of_rank: rank, categories: block.meta["categories"] },
    columns: { rank: Uint32Array.from(ranks.subarray(first, last)), start_ns: start, end_ns: end, category: Uint8Array.from(block.of("category").subarray(first, last)), lane, row },
  });
}

/** The step at an instant, or nearest to it; of several, that whose middle is. */
function nearest(steps: readonly Step[], at: number): number {
  let [best, least, middle] = [0, Infinity, Infinity];
  steps.forEach(({ windows }, index) => {
    for (const [start, end] of windows) {
      const away = Math.max(start - at, at - end, 0);
      const from = Math.abs(start + end - 2 * at);
      if (away < least || (away === least && from < middle)) [best, least, middle] = [index, away, from];
    }
  });
  return best;
}

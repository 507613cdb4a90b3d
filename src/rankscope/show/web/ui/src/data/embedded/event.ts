/** All about one event (`api/event`): its details, what launched it, its collective, other events with its name. */
import type { EventDetail, EventPlace } from "../../timeline/detail.ts";
import { CALL_TABLE, DEVICE_TABLE, OPERATOR_TABLE, type RankEvents } from "./rank_events.ts";
import type { EmbeddedRun } from "./run.ts";

const MAX_STEPS = 2000;
/** Launched events that are listed. */
const MAX_KERNELS = 20;

export async function eventOf(run: EmbeddedRun, lane: number, row: number): Promise<EventDetail | null> {
  const plan = run.planOfLane(lane);
  if (!plan) return null;
  const rank = await run.rank(plan);
  const own = rank.lanes[lane - plan.firstLane]!;
  if (row < 0 || row >= own.start.length) return null;
  const event = rank.numberAt(lane - plan.firstLane, row);
  const [start, end, code] = [own.start[row]!, own.end[row]!, own.code[row]!];
  const mine = (await run.details(plan.rank))[String(event)];
  const launch = rank.launch[event]! - 1;
  const operator = operatorOf(run, rank, event, launch);
  return {
    lane, row, rank: plan.rank, name: run.name(code), start_ns: start, end_ns: end,
    category: run.head.layout.categories[own.category ? own.category[row]! : run.codes.category[code]!]?.name ?? "other",
    step: stepAt(stepsOf(run, plan.rank), start),
    args: mine?.args ?? {}, shapes: mine?.shapes ?? null, stack: mine?.stack ?? [],
    launch: placeOf(run, rank, launch), operator: placeOf(run, rank, operator),
    forward: placeOf(run, rank, rank.forward.get(event) ?? -1), backward: placeOf(run, rank, rank.backward.get(event) ?? -1), kernels: kernelsOf(run, rank, event),
    collective: await collectiveOf(run, plan.rank, event),
    statistics: await statisticsOf(run, run.codes.name[code]!),
    ...(mine ? {} : { note: run.head.detailed > 0 ? `This report contains arguments and stacks of the ${run.head.detailed} longest events of each rank; rankscope serve shows all of them.` : "Arguments and stacks are not in this report; rankscope serve shows them." }),
  };
}

function operatorOf(run: EmbeddedRun, rank: RankEvents, event: number, launch: number): number {
  const table = run.codes.table[rank.code[event]!];
  if (table !== DEVICE_TABLE && table !== OPERATOR_TABLE && table !== CALL_TABLE) return -1;
  const recorded = rank.operator.get(event);
  if (recorded !== undefined) return recorded;
  if (table !== DEVICE_TABLE) return rank.around(event);
  return launch < 0 ? -1 : rank.around(launch);
}

function kernelsOf(run: EmbeddedRun, rank: RankEvents, event: number): EventDetail["kernels"] {
  const launched = rank.launchedBy(event);
  if (launched.length === 0) return null;
  return {
    count: launched.length, total_ns: launched.reduce((sum, each) => sum + rank.end[each]! - rank.start[each]!, 0),
    first: launched.slice(0, MAX_KERNELS).map((each) => placeOf(run, rank, each)).filter((place) => place !== null),
  };
}

function placeOf(run: EmbeddedRun, rank: RankEvents, event: number): EventPlace | null {
  if (event < 0 || event >= rank.length) return null;
  const { lane, row } = rank.place(event);
  return { lane: rank.plan.firstLane + lane, row, name: run.name(rank.code[event]!), start_ns: rank.start[event]!, end_ns: rank.end[event]! };
}

type Steps = readonly (readonly [number | null, number, number])[];

function stepsOf(run: EmbeddedRun, rank: number): Steps {
  return run.head.layout.ranks.find((each) => each.rank === rank)?.steps ?? [];
}

function stepAt(steps: Steps, start: number): number | null {
  return steps.find(([, first, last]) => first <= start && start < last)?.[0] ?? null;
}

async function collectiveOf(run: EmbeddedRun, rank: number, event: number): Promise<EventDetail["collective"]> {
  const found = await run.collectives.of(rank, event);
  if (!found) return null;
  const { mine, members } = found;
  const listed = [];
  for (const member of members) {
    const plan = run.plans.find((each) => each.rank === member.rank);
    const place = plan ? placeOf(run, await run.rank(plan), member.event) : null;
    if (place) listed.push({ rank: member.rank, lane: place.lane, row: place.row, start_ns: place.start_ns, end_ns: place.end_ns, wait_ns: member.wait });
  }
  // Unmatched collectives are counted from each rank's first: their numbers mean nothing across ranks.
  const alone = mine.match === null && run.head.compared > 1;
  const same = members.every(({ sequence }) => sequence === mine.sequence);
  const [name, group, bytes] = run.head.kinds[mine.kind] ?? [null, null, null];
  return { name: name ?? "", group, bytes, sequence: alone || !same ? null : mine.sequence, members: listed };
}

/** All events with a name, by rank and step; a rank's summary lane repeats others and is left out. */
async function statisticsOf(run: EmbeddedRun, name: number): Promise<EventDetail["statistics"]> {
  let [count, total, least, most] = [0, 0, Infinity, -Infinity];
  const ranks: { rank: number; count: number; total_ns: number }[] = [];
  const bySteps = new Map<number | null, { count: number; total_ns: number }>();
  for (const plan of run.plans) {
    const rank = await run.rank(plan);
    const windows = stepsOf(run, plan.rank);
    const mine = { rank: plan.rank, count: 0, total_ns: 0 };
    for (let event = 0; event < rank.length; event++) {
      if (run.codes.name[rank.code[event]!] !== name) continue;
      const length = rank.end[event]! - rank.start[event]!;
      mine.count++;
      mine.total_ns += length;
      [least, most] = [Math.min(least, length), Math.max(most, length)];
      const step = stepAt(windows, rank.start[event]!);
      const sum = bySteps.get(step) ?? { count: 0, total_ns: 0 };
      sum.count++;
      sum.total_ns += length;
      bySteps.set(step, sum);
    }
    count += mine.count;
    total += mine.total_ns;
    if (mine.count > 0) ranks.push(mine);
  }
  const steps = [...bySteps].sort(([a], [b]) => (a ?? Infinity) - (b ?? Infinity)).slice(0, MAX_STEPS).map(([step, sum]) => ({ step, ...sum }));
  return {
    count, total_ns: total, mean_ns: count > 0 ? total / count : 0, min_ns: count > 0 ? least : 0, max_ns: count > 0 ? most : 0,
    steps, ranks: ranks.sort((a, b) => a.rank - b.rank),
  };
}

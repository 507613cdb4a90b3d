/** One event whole (`api/event`): what the report holds of it, what launched it, its collective, others of its name. */
import type { EventDetail, EventPlace } from "../../timeline/detail.ts";
import type { EmbeddedApi } from "./embedded.ts";
import { CALL_TABLE, DEVICE_TABLE, OPERATOR_TABLE, type RankEvents } from "./rank_events.ts";

const MAX_STEPS = 2000;

export interface Told { readonly args?: Record<string, unknown>; readonly shapes?: string; readonly stack?: string[] }

export async function eventOf(api: EmbeddedApi, lane: number, row: number): Promise<EventDetail | null> {
  const plan = api.planOfLane(lane);
  if (!plan) return null;
  const rank = await api.rank(plan);
  const own = rank.lanes[lane - plan.firstLane]!;
  if (row < 0 || row >= own.start.length) return null;
  const event = rank.numberAt(lane - plan.firstLane, row);
  const [start, end, code] = [own.start[row]!, own.end[row]!, own.code[row]!];
  const mine = (await api.told(plan.rank))[String(event)];
  const launch = rank.launch[event]! - 1;
  const operator = operatorOf(api, rank, event, launch);
  return {
    lane, row, rank: plan.rank, name: api.name(code), start_ns: start, end_ns: end,
    category: api.head.layout.categories[own.category ? own.category[row]! : api.codes.category[code]!]?.name ?? "other",
    step: stepAt(stepsOf(api, plan.rank), start),
    args: mine?.args ?? {}, shapes: mine?.shapes ?? null, stack: mine?.stack ?? [],
    launch: placeOf(api, rank, launch), operator: placeOf(api, rank, operator),
    collective: await collectiveOf(api, plan.rank, event),
    statistics: await statisticsOf(api, api.codes.name[code]!),
    ...(mine ? {} : { note: api.head.told > 0 ? `Arguments and stacks of the ${api.head.told} longest events of each rank are in this report; rankscope serve shows those of all.` : "Arguments and stacks are not in this report; rankscope serve shows them." }),
  };
}

function operatorOf(api: EmbeddedApi, rank: RankEvents, event: number, launch: number): number {
  const table = api.codes.table[rank.code[event]!];
  if (table !== DEVICE_TABLE && table !== OPERATOR_TABLE && table !== CALL_TABLE) return -1;
  const told = rank.operator.get(event);
  if (told !== undefined) return told;
  if (table !== DEVICE_TABLE) return rank.around(event);
  return launch < 0 ? -1 : rank.around(launch);
}

function placeOf(api: EmbeddedApi, rank: RankEvents, event: number): EventPlace | null {
  if (event < 0 || event >= rank.length) return null;
  const { lane, row } = rank.place(event);
  return { lane: rank.plan.firstLane + lane, row, name: api.name(rank.code[event]!), start_ns: rank.start[event]!, end_ns: rank.end[event]! };
}

type Steps = readonly (readonly [number | null, number, number])[];

function stepsOf(api: EmbeddedApi, rank: number): Steps {
  return api.head.layout.ranks.find((each) => each.rank === rank)?.steps ?? [];
}

function stepAt(steps: Steps, start: number): number | null {
  return steps.find(([, first, last]) => first <= start && start < last)?.[0] ?? null;
}

async function collectiveOf(api: EmbeddedApi, rank: number, event: number): Promise<EventDetail["collective"]> {
  const found = await api.collectives.of(rank, event);
  if (!found) return null;
  const { mine, members } = found;
  const listed = [];
  for (const member of members) {
    const plan = api.plans.find((each) => each.rank === member.rank);
    const place = plan ? placeOf(api, await api.rank(plan), member.event) : null;
    if (place) listed.push({ rank: member.rank, lane: place.lane, row: place.row, start_ns: place.start_ns, end_ns: place.end_ns, wait_ns: member.wait });
  }
  // Where no number is written each rank counts from its own first: then the numbers say nothing.
  const alone = mine.match === null && api.head.compared > 1;
  const same = members.every(({ sequence }) => sequence === mine.sequence);
  const [name, group, bytes] = api.head.kinds[mine.kind] ?? [null, null, null];
  return { name: name ?? "", group, bytes, sequence: alone || !same ? null : mine.sequence, members: listed };
}

/** All events of a name over ranks and steps; a rank's own lane repeats others and is left out. */
async function statisticsOf(api: EmbeddedApi, name: number): Promise<EventDetail["statistics"]> {
  let [count, total, least, most] = [0, 0, Infinity, -Infinity];
  const ranks: { rank: number; count: number; total_ns: number }[] = [];
  const bySteps = new Map<number | null, { count: number; total_ns: number }>();
  for (const plan of api.plans) {
    const rank = await api.rank(plan);
    const windows = stepsOf(api, plan.rank);
    const mine = { rank: plan.rank, count: 0, total_ns: 0 };
    for (let event = 0; event < rank.length; event++) {
      if (api.codes.name[rank.code[event]!] !== name) continue;
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

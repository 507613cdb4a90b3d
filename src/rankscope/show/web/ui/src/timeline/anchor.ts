/** Leads to the event of a finding: the address that shows it with its peers, and the event itself among the lanes. */
import type { Api } from "../data/api.ts";
import type { Finding, FindingEvent } from "../data/payload.ts";
import type { Layout, Place } from "./layout.ts";

/** An event by its rank and time: what a link can name without knowing the lanes. */
export interface EventTime {
  readonly rank: number;
  readonly start: number;
  readonly end: number;
}

/** Clocks of files are shifted and stretched: rounding, ns. */
const ROUNDED = 2;
const ROOM = 0.1;
/** Around an event alone: what comes before and after it. */
const ROOM_ALONE = 1.5;
/** Of what is shown: an event that fills more than this is alone. */
const ALONE = 0.6;
const AT_ONCE = 200;
/** Device lanes first: a collective on the host is on a thread. */
const KINDS = ["stream", "thread", "annotation"] as const;

/** The address of a finding’s event: its rank open, it and the peers pinned, zoomed to all of them. */
export function eventParams(event: FindingEvent): Record<string, string> {
  const shown = Math.max(1, event.to_ns - event.from_ns);
  const room = shown * (event.end_ns - event.start_ns > ALONE * shown ? ROOM_ALONE : ROOM);
  const ranks = [event.rank, ...event.peers].join(".");
  return {
    t: `${Math.max(0, Math.floor(event.from_ns - room))}_${Math.ceil(event.to_ns + room)}`, open: String(event.rank), pin: ranks,
    ev: eventTime({ rank: event.rank, start: event.start_ns, end: event.end_ns }),
  };
}

/** What the address of another place must lose. */
export const ELSEWHERE: Readonly<Record<string, string>> = { ev: "", range: "", sel: "", m: "", calls: "", rank: "", step: "", at: "", lanes: "", name: "", row: "", gap: "" };

export function readEventTime(text: string | undefined): EventTime | null {
  const found = /^(\d{1,9})_(-?\d{1,16})_(-?\d{1,16})$/.exec(text ?? "");
  return found ? { rank: Number(found[1]), start: Number(found[2]), end: Number(found[3]) } : null;
}

/** An event, or a stretch of time, as a parameter of the address. */
export function eventTime({ rank, start, end }: EventTime): string {
  return `${rank}_${start}_${end}`;
}

/** The event of a rank that starts at an instant; of several the one that ends then, else the longest. Null where it is not there. */
export async function findEvent(api: Api, layout: Layout, { rank, start, end }: EventTime): Promise<Place | null> {
  for (const kind of KINDS) {
    const lanes = layout.tracks.filter((track) => track.rank === rank && track.kind === kind).flatMap((track) => Array.from({ length: track.lanes }, (_, lane) => track.firstLane + lane));
    if (lanes.length === 0) continue;
    const file = await api.columns("events", { lanes: lanes.join(","), from: Math.max(0, start - ROUNDED), to: start + 1 + ROUNDED, limit: AT_ONCE });
    const [lane, row, starts, ends] = [file.u32("lane"), file.u32("row"), file.f64("start_ns"), file.f64("end_ns")];
    let best = -1;
    for (let i = 0; i < row.length; i++) {
      if (Math.abs(starts[i]! - start) > ROUNDED) continue;
      if (best < 0 || Math.abs(ends[i]! - end) < Math.abs(ends[best]! - end)) best = i;
    }
    if (best >= 0) return { lane: lanes[lane[best]!]!, row: row[best]! };
  }
  return null;
}

/** What findings and their symptoms say of an event. */
export function saidOf(findings: readonly Finding[], event: { readonly rank: number; readonly start_ns: number; readonly end_ns: number }): FindingEvent[] {
  const own = findings.flatMap(({ place }) => (place?.event && place.event.rank === event.rank && place.event.start_ns === event.start_ns && event.end_ns <= place.event.end_ns ? [place.event] : []));
  const all = [...own, ...findings.flatMap(({ symptoms }) => saidOf(symptoms ?? [], event))];
  return all.filter(({ reason }, index) => all.findIndex((other) => other.reason === reason) === index);
}

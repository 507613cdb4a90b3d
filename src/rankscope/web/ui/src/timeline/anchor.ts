/** Leads to the event of a finding: the address that shows it with its peers, and the event itself among the lanes. */
import type { Api } from "../data/api.ts";
import type { Finding, FindingEvent } from "../data/payload.ts";
import type { Layout } from "./layout.ts";
import type { Place } from "./model.ts";

/** An event by its rank and time: what a link can name without knowing the lanes. */
export interface EventTime {
  readonly rank: number;
  readonly start: number;
  readonly end: number;
}

const ROOM = 0.1;
const AT_ONCE = 200;
/** Device lanes first: a collective on the host is on a thread. */
const KINDS = ["stream", "thread", "annotation"] as const;

/** The address of a finding’s event: its rank open, it and the peers pinned, zoomed to all of them. */
export function eventParams(event: FindingEvent): Record<string, string> {
  const room = ROOM * Math.max(1, event.to_ns - event.from_ns);
  const ranks = [event.rank, ...event.peers].join(".");
  return {
    t: `${Math.max(0, Math.floor(event.from_ns - room))}_${Math.ceil(event.to_ns + room)}`, open: String(event.rank), pin: ranks,
    ev: `${event.rank}_${event.start_ns}_${event.end_ns}`,
  };
}

/** What the address of another place must lose. */
export const ELSEWHERE: Readonly<Record<string, string>> = { sel: "", m: "", calls: "", rank: "", step: "", at: "", lanes: "", name: "" };

export function readEventTime(text: string | undefined): EventTime | null {
  const found = /^(\d{1,9})_(-?\d{1,16})_(-?\d{1,16})$/.exec(text ?? "");
  return found ? { rank: Number(found[1]), start: Number(found[2]), end: Number(found[3]) } : null;
}

/** The event of a rank that starts at an instant; of several the one that ends then, else the longest. Null where it is not there. */
export async function findEvent(api: Api, layout: Layout, { rank, start, end }: EventTime): Promise<Place | null> {
  for (const kind of KINDS) {
    const lanes = layout.tracks.filter((track) => track.rank === rank && track.kind === kind).flatMap((track) => Array.from({ length: track.lanes }, (_, lane) => track.firstLane + lane));
    if (lanes.length === 0) continue;
    const file = await api.columns("events", { lanes: lanes.join(","), from: Math.max(0, start), to: start + 1, limit: AT_ONCE });
    const [lane, row, starts, ends] = [file.u32("lane"), file.u32("row"), file.f64("start_ns"), file.f64("end_ns")];
    let best = -1;
    for (let i = 0; i < row.length; i++) {
      if (starts[i] !== start) continue;
      if (best < 0 || Math.abs(ends[i]! - end) < Math.abs(ends[best]! - end)) best = i;
    }
    if (best >= 0) return { lane: lanes[lane[best]!]!, row: row[best]! };
  }
  return null;
}

/** What findings say of an event. */
export function reasonsOf(findings: readonly Finding[], event: { readonly rank: number; readonly start_ns: number }): string[] {
  return findings.flatMap(({ place }) => (place?.event && place.event.rank === event.rank && place.event.start_ns === event.start_ns ? [place.event.reason] : []));
}

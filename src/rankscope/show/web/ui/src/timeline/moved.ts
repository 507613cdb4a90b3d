/** A place in the timeline of a run that was read again: its lanes have other numbers, its clock may begin elsewhere. */
export interface RawLayout {
  readonly origin_ns: string;
  readonly ranks: readonly { readonly rank: number }[];
  readonly tracks: readonly { readonly rank: number; readonly kind: string; readonly title: string; readonly lanes: readonly [number, number] }[];
  readonly lanes: { readonly track: readonly number[]; readonly depth: readonly number[]; readonly overflow: readonly (number | boolean)[] };
}

/** The address's parameters that name lanes, tracks and instants, as they are in the new layout; empty if it no longer exists. */
export function moved(params: ReadonlyMap<string, string>, before: RawLayout, after: RawLayout): Record<string, string> {
  const by = Number(BigInt(before.origin_ns) - BigInt(after.origin_ns));
  const found: Record<string, string> = {};
  for (const name of ["t", "m"]) {
    const ends = params.get(name)?.split("_").map(Number);
    if (by !== 0 && ends?.length === 2 && ends.every(Number.isFinite)) found[name] = ends.map((end) => String(end + by)).join("_");
  }
  // Two ranks are open unless the address says otherwise, and more are not (model.ts): those that are open stay so.
  if (!params.get("open") && before.ranks.length <= 2 && after.ranks.length > 2) found["open"] = before.ranks.map(({ rank }) => rank).sort((a, b) => a - b).join(".");
  const trackNames = names(before);
  const tracks = new Map(names(after).map((name, index) => [name, index]));
  const [lane, row] = params.get("sel")?.split(".").map(Number) ?? [];
  if (lane !== undefined && row !== undefined) {
    const lanes = new Map(after.lanes.track.map((_, index) => [laneName(after, names(after), index), index]));
    const now = lane < before.lanes.track.length ? lanes.get(laneName(before, trackNames, lane)) : undefined;
    found["sel"] = now === undefined ? "" : `${now}.${row}`;
  }
  for (const name of ["tracks", "pintracks", "hidetracks"]) {
    const open = params.get(name);
    if (!open) continue;
    const indices = open.split(".").flatMap((part) => {
      const [low, high] = part.split("-").map(Number);
      return Array.from({ length: Math.max(0, Math.min((high ?? low ?? 0) - (low ?? 0) + 1, trackNames.length)) }, (_, i) => (low ?? 0) + i);
    });
    found[name] = indices.map((index) => tracks.get(trackNames[index] ?? "")).filter((index) => index !== undefined).sort((a, b) => a - b).join(".");
  }
  return found;
}

/** The key of each track: its rank, kind and title, and its number among equal ones. */
function names(layout: RawLayout): string[] {
  const seen = new Map<string, number>();
  return layout.tracks.map(({ rank, kind, title }) => {
    const name = JSON.stringify([rank, kind, title]);
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return `${name}${seen.get(name)}`;
  });
}

function laneName(layout: RawLayout, tracks: readonly string[], lane: number): string {
  const { track, depth, overflow } = layout.lanes;
  return `${tracks[track[lane] ?? -1]}/${depth[lane]}/${Number(overflow[lane] ?? 0)}`;
}

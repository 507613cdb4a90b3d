/** Shared by the parts of the timeline: the data, the view, and the listeners for changes of the view. */
import type { Api } from "../data/api.ts";
import type { FindingEvent, Severity } from "../data/payload.ts";
import type { CallsChoice } from "../calls/choice.ts";
import type { Counters } from "./counters.ts";
import type { EventDetail } from "./detail.ts";
import type { Flag } from "./flags.ts";
import { groupingAtFirst, groupsOf, measureOf, type Measure, type RankGroup } from "./groups.ts";
import { firstWindow, type Layout, type Place } from "./layout.ts";
import type { Names } from "./names.ts";
import { NameLanes, type NameTrack } from "./name_tracks.ts";
import { orderOf, type Heat, type Order } from "./order.ts";
import type { Path, PathOf } from "./path.ts";
import type { Folding, Rows } from "./rows.ts";
import { isFolded, minorTracks, rowsOf } from "./rows.ts";
import type { TileCache } from "./tiles.ts";
import type { Window } from "./window.ts";

type Listener = () => void;

export class Model {
  readonly api: Api;
  readonly layout: Layout;
  readonly cache: TileCache;
  readonly names: Names;
  readonly counters: Counters;
  /** The highest severity of a rank's findings, marked next to its row. */
  marks: ReadonlyMap<number, Severity> = new Map();
  readonly openAtFirst: ReadonlySet<number>;
  /** What is shown where the address names no window. */
  readonly firstWindow: Window;
  /** What the ranks are grouped by, and which are pinned, where the address names nothing: among many ranks the stragglers. */
  readonly groupAtFirst: string;
  pinnedAtFirst: ReadonlySet<number> = new Set();
  window: Window;
  rows: Rows;
  open: Set<number>;
  tracks = new Set<number>();
  readonly pinned = { ranks: new Set<number>(), tracks: new Set<number>() };
  readonly hidden = { ranks: new Set<number>(), tracks: new Set<number>() };
  minor = new Set<number>();
  nameTracks: readonly NameTrack[] = [];
  readonly nameLanes: NameLanes;
  order: Order = "rank";
  /** For the order by lateness and the groups' values; null until it is fetched. */
  heat: Heat | null = null;
  /** What the ranks are grouped by: a dimension of the mesh, or `host`; empty for no groups. */
  groupBy = "";
  /** Groups that show all of their ranks. */
  openGroups = new Set<number>();
  #groups: { readonly by: string; readonly heat: Heat | null; readonly measure: Measure | null; readonly groups: readonly RankGroup[] } | null = null;
  /** Notes at instants, in their order. */
  flags: readonly Flag[] = [];
  filter = "";
  query = "";
  showCounters = true;
  height = 400;
  width = 800;
  /** The picture's own pixels across: more than `width` where the screen is fine. */
  pixels = 800;
  selected: Place | null = null;
  detail: EventDetail | null = null;
  /** What findings say of the selected event: written next to it. */
  said: readonly FindingEvent[] = [];
  measured: Window | null = null;
  /** Whose critical path is shown; null for none. */
  pathOf: PathOf | null = null;
  /** The path that is shown, once it is fetched. */
  path: Path | null = null;
  /** How the calls of the measured range are shown; null for its statistics. */
  calls: CallsChoice | null = null;
  /** The index of the rank that was jumped to last: the ruler names its steps while its row is visible. */
  jumped: number | null = null;
  /** The last search's name, to find it again. */
  readonly #draw = new Set<Listener>();
  readonly #folded = new Set<Listener>();

  constructor(api: Api, layout: Layout, cache: TileCache, names: Names, counters: Counters) {
    this.api = api;
    this.layout = layout;
    this.cache = cache;
    this.names = names;
    this.counters = counters;
    this.nameLanes = new NameLanes(layout, names);
    this.firstWindow = firstWindow(layout);
    this.groupAtFirst = groupingAtFirst(layout);
    this.window = this.firstWindow;
    this.openAtFirst = new Set(layout.ranks.length <= 2 ? layout.ranks.map((rank) => rank.rank) : []);
    this.open = new Set(this.openAtFirst);
    this.rows = rowsOf(layout, this.folding(), this.height);
  }

  folding(): Folding {
    const { pinned, hidden, minor, nameTracks: names } = this;
    return { ranks: this.open, tracks: this.tracks, filter: this.filter, counters: this.showCounters, pinned, hidden, minor, names, nameLane: (name, rank) => this.nameLanes.lane(name, rank), order: orderOf(this.layout, this.order, this.heat), groups: this.#groupRows(), openGroups: this.openGroups, found: this.marks };
  }

  /** The groups of ranks by index; null where they are not grouped. */
  get groups(): readonly RankGroup[] | null {
    return this.groupBy === "" ? null : this.#grouped().groups;
  }

  /** The groups' rows: in the order by lateness the one with the greatest value first. */
  #groupRows(): readonly RankGroup[] | null {
    const { groups } = this;
    return groups && this.order === "late" ? [...groups].sort((a, b) => (b.extremes[0]?.value ?? -1) - (a.extremes[0]?.value ?? -1)) : groups;
  }

  /** What the ranks of a group are compared by; null where it is not known yet. */
  get measure(): Measure | null {
    return this.#grouped().measure;
  }

  #grouped(): { readonly measure: Measure | null; readonly groups: readonly RankGroup[] } {
    const { groupBy: by, heat } = this;
    if (this.#groups?.by !== by || this.#groups.heat !== heat) {
      const measure = measureOf(heat);
      this.#groups = { by, heat, measure, groups: groupsOf(this.layout, by, measure) };
    }
    return this.#groups;
  }

  onDraw(listener: Listener): void {
    this.#draw.add(listener);
  }

  onFold(listener: Listener): void {
    this.#folded.add(listener);
  }

  /** Something that the picture shows has changed. */
  changed(): void {
    for (const tell of this.#draw) tell();
  }

  /** Rows come or go. */
  refold(): void {
    this.rows = rowsOf(this.layout, this.folding(), this.height);
    for (const tell of this.#folded) tell();
    this.changed();
  }

  show(window: Window): void {
    this.window = window;
    this.changed();
  }

  toggleRank(rank: number, open = !this.open.has(rank)): void {
    if (open) this.open.add(rank);
    else this.open.delete(rank);
    this.refold();
  }

  toggleGroup(group: number): void {
    if (!this.openGroups.delete(group)) this.openGroups.add(group);
    this.refold();
  }

  toggleTrack(track: number): void {
    if (!this.tracks.delete(track)) this.tracks.add(track);
    this.refold();
  }

  setNameTracks(tracks: readonly NameTrack[]): void {
    this.nameTracks = tracks;
    this.refold();
  }

  /** The row of the track of its name in which an event is, or -1. */
  rowInNameTrack({ name, rank }: EventDetail): number {
    return this.nameTracks.some((track) => track.name === name) ? this.rows.rowOfNamed.get(this.nameLanes.lane(name, rank)) ?? -1 : -1;
  }

  /** Opens what hides a lane. */
  reveal(lane: number): void {
    const track = this.layout.tracks[this.layout.laneTrack[lane] ?? 0];
    if (!track || (this.rows.rowOfLane[lane] ?? -1) >= 0) return;
    if (this.filter !== "") this.filter = "";
    this.hidden.ranks.delete(track.rank);
    this.hidden.tracks.delete(track.index);
    const rank = this.layout.ranks.find((each) => each.rank === track.rank);
    if (rank && minorTracks(this.layout.tracks.slice(rank.firstTrack, rank.firstTrack + rank.tracks)).has(track.index)) this.minor.add(track.rank);
    if (track.kind !== "rank" || this.groups) this.open.add(track.rank); // also shown in a closed group
    if (isFolded(this.layout, this.folding(), track.index) && lane !== track.firstLane) {
      if (!this.tracks.delete(track.index)) this.tracks.add(track.index);
    }
    this.refold();
  }
}

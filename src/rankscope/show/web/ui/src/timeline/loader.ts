/** Asks the server for what the view lacks: the whole run coarsely first, then what is visible, then single events. */
import { isAbort, type Api } from "../data/api.ts";
import type { Scene } from "./draw.ts";
import type { Layout } from "./layout.ts";
import type { NameLanes } from "./name_tracks.ts";
import type { Rows } from "./rows.ts";
import { TILE_BINS, type TileCache, type TileColumn } from "./tiles.ts";

/**
 * Events drawn one by one: no more than this in a lane of a column, and in a column. A column is 256 to 1,024 pixels wide:
 * where there are more, most are narrower than a few pixels, and bins of less than a pixel show the same for less.
 */
const EXACT_IN_LANE = 300;
const EXACT_IN_COLUMN = 24000;
const LANES_AT_ONCE = 192;
const AT_ONCE = 4;
const PAUSE_MS = 40;
const AGAIN_MS = 4000;

interface Job { readonly column: TileColumn; readonly lanes: readonly number[]; readonly exact: boolean; readonly limit: number }
interface Flight { readonly column: TileColumn; readonly stop: AbortController }

export class Loader {
  readonly #api: Api;
  readonly #cache: TileCache;
  readonly #layout: Layout;
  readonly #named: NameLanes;
  readonly #came: (answered: boolean) => void;
  readonly #failed: (error: unknown) => void;
  readonly #flights = new Set<Flight>();
  readonly #overview: number;
  /** Called when the view lacks nothing more. */
  rested: () => void = () => undefined;
  #scene: Scene | null = null;
  #lanes: readonly number[] = [];
  #rows: Rows | null = null;
  #first = 0;
  #last = 0;
  #timer = 0;
  #pausedUntil = 0;
  #emptied = false;
  #ended = false;

  constructor(api: Api, cache: TileCache, layout: Layout, named: NameLanes, came: (answered: boolean) => void, failed: (error: unknown) => void) {
    this.#api = api;
    this.#cache = cache;
    this.#layout = layout;
    this.#named = named;
    this.#came = came;
    this.#failed = failed;
    let level = 0;
    while (level < layout.levels - 1 && TILE_BINS * cache.binWidth(level) < layout.span) level++;
    this.#overview = level;
  }

  /** What is visible: the pinned rows, and those from `first` to before `last`. */
  want(scene: Scene, rows: Rows, first: number, last: number): void {
    this.#scene = scene;
    if (rows !== this.#rows || first !== this.#first || last !== this.#last) {
      this.#lanes = [...rows.lane.subarray(0, rows.pinned), ...rows.lane.subarray(first, last)].filter((lane) => lane >= 0).sort((a, b) => a - b);
      [this.#rows, this.#first, this.#last] = [rows, first, last];
    }
    if (this.#timer === 0 && !this.#ended) this.#timer = window.setTimeout(() => this.#plan(), PAUSE_MS);
  }

  end(): void {
    this.#ended = true;
    clearTimeout(this.#timer);
    for (const flight of this.#flights) flight.stop.abort();
  }

  #plan(): void {
    this.#timer = 0;
    const scene = this.#scene;
    if (!scene || this.#ended) return;
    const wait = this.#pausedUntil - performance.now();
    if (wait > 0) {
      this.#timer = window.setTimeout(() => this.#plan(), wait);
      return;
    }
    const overview = this.#cache.columnsOf(this.#overview, 0, this.#layout.span);
    for (const flight of this.#flights) {
      if (!scene.columns.includes(flight.column) && !overview.includes(flight.column)) flight.stop.abort();
    }
    for (const job of this.#jobs(scene, overview)) {
      if (this.#flights.size >= AT_ONCE) break;
      void this.#fetch(job);
    }
    if (this.#emptied) this.#came(false); // what was missing turned out to be nothing: no answer will say so
    this.#emptied = false;
    if (this.#flights.size === 0) this.rested();
  }

  *#jobs(scene: Scene, overview: readonly TileColumn[]): Generator<Job> {
    for (const column of overview) yield* this.#bins(column);
    const middle = (scene.window.from + scene.window.to) / 2;
    const near = [...scene.columns].sort((a, b) => Math.abs((a.start + a.end) / 2 - middle) - Math.abs((b.start + b.end) / 2 - middle));
    if (scene.level >= 0) for (const column of near) yield* this.#bins(column);
    for (const column of near) yield* this.#events(column);
  }

  *#bins(column: TileColumn): Generator<Job> {
    const missing = this.#lanes.filter((lane) => !column.bins.has(lane) && !column.pendingBins.has(lane) && this.#touches(column, lane));
    for (const lanes of this.#together(missing)) yield { column, lanes, exact: false, limit: 0 };
  }

  *#events(column: TileColumn): Generator<Job> {
    const known = this.#lanes.filter((lane) => !column.events.has(lane) && !column.pendingEvents.has(lane) && !column.crowded.has(lane) && this.#touches(column, lane));
    let lanes = known;
    if (column.level >= 0) {
      const counts = new Map(known.map((lane) => [lane, column.bins.get(lane)?.count ?? Infinity]));
      let room = EXACT_IN_COLUMN;
      lanes = known.filter((lane) => (counts.get(lane) ?? Infinity) <= EXACT_IN_LANE)
        .sort((a, b) => (counts.get(a) ?? 0) - (counts.get(b) ?? 0)).filter((lane) => (room -= counts.get(lane) ?? 0) >= 0).sort((a, b) => a - b);
    }
    for (const some of this.#together(lanes)) yield { column, lanes: some, exact: true, limit: 2 * EXACT_IN_COLUMN };
  }

  /** Lanes, ascending, in parts that one request may name. */
  *#together(lanes: readonly number[]): Generator<readonly number[]> {
    for (let i = 0; i < lanes.length; ) {
      const group = this.#named.group(lanes[i]!);
      let j = i + 1;
      while (j < lanes.length && j - i < LANES_AT_ONCE && this.#named.group(lanes[j]!) === group) j++;
      yield lanes.slice(i, j);
      i = j;
    }
  }

  #touches(column: TileColumn, lane: number): boolean {
    const exists = this.#named.exists(lane);
    if (exists === null) return false; // once the names are there
    if (this.#named.group(lane) >= 0 && exists) return true;
    if ((this.#layout.laneLast[lane] ?? 0) >= column.start && (this.#layout.laneFirst[lane] ?? 0) <= column.end && (this.#layout.laneEvents[lane] ?? 0) > 0) return true;
    this.#cache.addEmpty(column, lane);
    this.#emptied = true;
    return false;
  }

  async #fetch({ column, lanes, exact, limit }: Job): Promise<void> {
    const flight: Flight = { column, stop: new AbortController() };
    const pending = exact ? column.pendingEvents : column.pendingBins;
    for (const lane of lanes) pending.add(lane);
    this.#flights.add(flight);
    try {
      if (exact) {
        const [address, which] = this.#named.request("events", lanes);
        const file = await this.#api.columns(address, { ...which, from: Math.max(0, Math.floor(column.start)), to: Math.ceil(column.end), limit }, flight.stop.signal);
        if (file.meta["more"]) for (const lane of lanes) column.crowded.add(lane);
        else this.#cache.addEvents(column, lanes, file);
      } else {
        const [address, which] = this.#named.request("tiles", lanes);
        this.#cache.addBins(column, lanes, await this.#api.columns(address, { ...which, level: column.level, first: column.index * TILE_BINS, bins: TILE_BINS }, flight.stop.signal));
      }
      this.#came(true);
    } catch (error) {
      if (!isAbort(error)) {
        this.#pausedUntil = performance.now() + AGAIN_MS;
        this.#failed(error);
      }
    } finally {
      for (const lane of lanes) pending.delete(lane);
      this.#flights.delete(flight);
      if (!this.#ended && this.#timer === 0) this.#timer = window.setTimeout(() => this.#plan(), 0);
    }
  }
}

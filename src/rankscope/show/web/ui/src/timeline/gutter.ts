/** The rows' names next to the picture: buttons that fold and open, pin and hide. Only those visible exist. */
import { button } from "../components/controls.ts";
import { h, named, styled } from "../components/dom.ts";
import type { Severity } from "../data/payload.ts";
import { counted } from "../format/ranks.ts";
import { foldedName } from "../format/short_name.ts";
import { shownName } from "../format/text.ts";
import { formatDuration } from "../format/units.ts";
import { groupText, type RankGroup } from "./groups.ts";
import { laneTitle, type RankRow, type Track } from "./layout.ts";
import type { Model } from "./model.ts";
import { toggled, type NameTrack } from "./name_tracks.ts";
import { firstRowAt, isFolded, isOfRank, RowKind } from "./rows.ts";
import { RULER } from "./frame.ts";

const WORDS_NEED = 13;
const NUMBERED = /^(|ranges |Python, )(on stream |thread )(.+)$/s;
const SEVERITY = { error: "has an error", warning: "has a warning", info: "has a note" } as const;

export class Gutter {
  readonly element: HTMLElement;
  /** The names of the pinned rows: they stay above the others. */
  readonly pins = h("div", { class: "tl-pins", role: "group", "aria-label": "Pinned ranks and lanes" });
  readonly #model: Model;
  readonly #box: () => HTMLElement;
  readonly #folded: () => void;
  #drawn = "";
  #version = 0;

  /** `folded` is called when the reader has opened or folded something. */
  constructor(model: Model, box: () => HTMLElement, folded: () => void) {
    this.#model = model;
    this.#box = box;
    this.#folded = folded;
    this.element = h("div", { class: "tl-gutter", role: "group", "aria-label": "Ranks and their lanes" });
    model.onFold(() => { this.#version++; this.draw(); });
  }

  draw(): void {
    const { rows, height } = this.#model;
    const scroll = this.#box().scrollTop;
    const first = Math.max(rows.pinned, firstRowAt(rows, scroll - 200));
    let last = first;
    while (last < rows.length && rows.top[last]! < scroll + height + 200) last++;
    const drawn = `${this.#version} ${first} ${last}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.["row"];
    const inside = this.element.contains(document.activeElement) || this.pins.contains(document.activeElement);
    styled(this.pins, { height: `${rows.pinnedHeight}px` });
    this.pins.replaceChildren(...this.#parts(0, rows.pinned, 0));
    this.element.replaceChildren(...this.#parts(first, last, RULER));
    if (focused !== undefined && inside) (this.#named(this.element, focused) ?? this.#named(this.pins, focused))?.focus({ preventScroll: true });
  }

  #named(within: HTMLElement, row: string): HTMLElement | null {
    return within.querySelector<HTMLElement>(`[data-row="${CSS.escape(row)}"]`);
  }

  #parts(first: number, last: number, below: number): HTMLElement[] {
    const { layout, marks, rows } = this.#model;
    const parts: HTMLElement[] = [];
    const placeOf = (row: number): number => Math.max(0, rows.top[row]! - Math.max(0, WORDS_NEED - rows.size[row]!) / 2);
    const isMarked = (row: number): boolean => rows.kind[row] === RowKind.Rank && marks.has(layout.ranks[rows.of[row]!]?.rank ?? -1);
    let free = -Infinity;
    let marked = first; // the next row whose rank a finding names: its name is never left out for another's
    for (let row = first; row < last; row++) {
      const size = rows.size[row]!;
      const kind = rows.kind[row];
      const at = placeOf(row);
      if (size < WORDS_NEED) {
        while (marked < last && (marked < row || !isMarked(marked))) marked++;
        const beforeMarked = marked > row && marked < last && placeOf(marked) < at + WORDS_NEED + 3;
        if ((kind !== RowKind.Rank && kind !== RowKind.Named) || at < free || beforeMarked) continue;
        free = at + WORDS_NEED + 3;
      }
      const part = this.#part(row, kind ?? RowKind.Lane);
      if (part) parts.push(styled(part, { top: `${below + at}px`, height: `${Math.max(size, WORDS_NEED)}px` }));
    }
    return parts;
  }

  #part(row: number, kind: RowKind): HTMLElement | null {
    const { layout, rows } = this.#model;
    const of = rows.of[row]!;
    if (kind === RowKind.Name) return this.#name(this.#model.nameTracks[of]!);
    const group = kind === RowKind.Group ? this.#model.groups?.[of] : undefined;
    if (group) return this.#group(group);
    if (isOfRank(kind)) {
      const rank = layout.ranks[of];
      if (!rank) return null;
      if (kind === RowKind.Named) return h("div", { class: "tl-name lane", "data-testid": `named-${rank.rank}` }, `rank ${rank.rank}`);
      if (kind === RowKind.More) return this.#more(rank);
      return kind === RowKind.Rank ? this.#rank(rank) : h("div", { class: "tl-name counter", title: (rank.counters[-1 - rows.lane[row]!] ?? "").slice(0, 200) }, named(rank.counters[-1 - rows.lane[row]!] ?? "", 40));
    }
    const track = layout.tracks[of];
    if (!track) return null;
    if (kind === RowKind.Track) return this.#track(track, row < rows.pinned);
    const lane = rows.lane[row]!;
    return layout.laneOverflow[lane] ? h("div", { class: "tl-name lane", title: laneTitle(layout, lane) }, "overflow") : null;
  }

  #rank(rank: RankRow): HTMLElement {
    const open = this.#model.open.has(rank.rank);
    const mark = this.#model.marks.get(rank.rank);
    const extreme = this.#model.groups?.flatMap(({ extremes }) => extremes).find((each) => each.rank === rank.rank);
    const note = extreme ? `${extreme.what} ${formatDuration(extreme.value, 2)}` : rank.mesh.replaceAll("=", "").replaceAll(", ", " ") || rank.host;
    const about = [rank.mesh, rank.host, rank.device].filter(Boolean).join(" · ");
    return button({
      class: "tl-name rank", "aria-expanded": String(open), "data-row": `r${rank.rank}`, "data-testid": `rank-${rank.rank}`,
      title: `Rank ${rank.rank}${about === "" ? "" : ` · ${about.slice(0, 300)}`}${mark ? ` · ${SEVERITY[mark]}` : ""}`,
    }, () => { this.#model.toggleRank(rank.rank); this.#folded(); },
    h("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"), h("span", { class: "which" }, `Rank ${rank.rank}`),
    ...this.#mark(mark), note === "" ? null : h("small", {}, named(note, 24)));
  }

  #group(group: RankGroup): HTMLElement {
    const open = this.#model.openGroups.has(group.index);
    const marks = group.ranks.map(({ rank }) => this.#model.marks.get(rank));
    const mark = (["error", "warning"] as const).find((severity) => marks.includes(severity));
    return button({
      class: "tl-name rank group", "aria-expanded": String(open), "data-row": `g${group.index}`, "data-testid": `group-${group.index}`,
      title: `${group.title}: ${counted(group.ranks.length, "rank")} · ${groupText(group, this.#model.measure)}`.slice(0, 400),
    }, () => { this.#model.toggleGroup(group.index); this.#folded(); },
    h("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"), h("span", { class: "which" }, named(group.title, 24)), ...this.#mark(mark),
    h("small", {}, counted(group.ranks.length, "rank")));
  }

  #mark(mark: Severity | undefined): HTMLElement[] {
    return mark ? [h("span", { class: `mark ${mark}` }, h("span", { "aria-hidden": "true" }, "●"), h("span", { class: "unseen" }, ` (${SEVERITY[mark]})`))] : [];
  }

  #name(track: NameTrack): HTMLElement {
    const text = shownName(foldedName(track.name), 200);
    return h("div", { class: "tl-name part of-name", title: text, "data-testid": "name-track", "data-name": track.name.slice(0, 200) }, named(text, 48),
      button({ class: "quiet", "aria-label": `Remove the track ${text}`, title: "Remove this track", "data-testid": "name-track-remove" }, () => { this.#model.setNameTracks(toggled(this.#model.nameTracks, track)); this.#folded(); }, "×"));
  }

  #more({ rank }: RankRow): HTMLElement {
    const open = this.#model.minor.has(rank);
    return button({ class: "tl-name part more", "aria-expanded": String(open), "data-row": `m${rank}`, "data-testid": `more-${rank}`, title: "The profiler’s own lanes and threads without a name" },
      () => { if (!this.#model.minor.delete(rank)) this.#model.minor.add(rank); this.#model.refold(); this.#folded(); }, h("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"), open ? "fewer lanes" : "more lanes");
  }

  #track(track: Track, pinned: boolean): HTMLElement {
    const folded = isFolded(this.#model.layout, this.#model.folding(), track.index);
    // Where there is little room, the number says more than the words before it.
    const [, before = "", words = "", after = ""] = NUMBERED.exec(track.title) ?? [];
    const title = words === "" ? named(track.title, 48) : h("span", { class: "name" }, before, h("span", { class: "tl-kind" }, words), named(after, 48));
    const name = [pinned ? h("span", { class: "which" }, `${track.rank}`) : null, title];
    if (track.lanes < 2 && !folded) return h("div", { class: "tl-name part single", title: track.title.slice(0, 400), "data-row": `t${track.index}` }, name);
    return button({
      class: "tl-name part", "aria-expanded": String(!folded), "data-row": `t${track.index}`, "data-testid": `track-${track.index}`, "data-kind": track.kind,
      title: `${track.title.slice(0, 400)} · ${counted(track.lanes, "lane")}`,
    }, () => { this.#model.toggleTrack(track.index); this.#folded(); }, h("span", { class: "twist", "aria-hidden": "true" }, folded ? "▸" : "▾"), name);
  }
}

/** The rows' names next to the picture: buttons that fold and open. Only those visible exist. */
import { button } from "../components/controls.ts";
import { h, named, styled } from "../components/dom.ts";
import { counted } from "../format/ranks.ts";
import { laneTitle, type RankRow, type Track } from "./layout.ts";
import type { Model } from "./model.ts";
import { firstRowAt, isFolded, RowKind } from "./rows.ts";
import { RULER } from "./frame.ts";

const WORDS_NEED = 13;
const SEVERITY = { error: "has an error", warning: "has a warning", info: "has a note" } as const;

export class Gutter {
  readonly element: HTMLElement;
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
    const first = Math.max(0, firstRowAt(rows, scroll - 200));
    let last = first;
    while (last < rows.length && rows.top[last]! < scroll + height + 200) last++;
    const drawn = `${this.#version} ${first} ${last}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.["row"];
    const inside = this.element.contains(document.activeElement);
    const parts: HTMLElement[] = [];
    let free = -Infinity;
    for (let row = first; row < last; row++) {
      const top = rows.top[row]!;
      const size = rows.size[row]!;
      const kind = rows.kind[row];
      const at = Math.max(0, top - Math.max(0, WORDS_NEED - size) / 2);
      if (size < WORDS_NEED) {
        if (kind !== RowKind.Rank || at < free) continue;
        free = at + WORDS_NEED + 3;
      }
      const part = this.#part(row, kind ?? RowKind.Lane);
      if (part) parts.push(styled(part, { top: `${RULER + at}px`, height: `${Math.max(size, WORDS_NEED)}px` }));
    }
    this.element.replaceChildren(...parts);
    if (inside && focused !== undefined) this.element.querySelector<HTMLElement>(`[data-row="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  #part(row: number, kind: RowKind): HTMLElement | null {
    const { layout, rows } = this.#model;
    const of = rows.of[row]!;
    if (kind === RowKind.Rank || kind === RowKind.Counter) {
      const rank = layout.ranks[of];
      if (!rank) return null;
      return kind === RowKind.Rank ? this.#rank(rank) : h("div", { class: "tl-name counter", title: (rank.counters[-1 - rows.lane[row]!] ?? "").slice(0, 200) }, named(rank.counters[-1 - rows.lane[row]!] ?? "", 40));
    }
    const track = layout.tracks[of];
    if (!track) return null;
    if (kind === RowKind.Track) return this.#track(track);
    const lane = rows.lane[row]!;
    return layout.laneOverflow[lane] ? h("div", { class: "tl-name lane", title: laneTitle(layout, lane) }, "overflow") : null;
  }

  #rank(rank: RankRow): HTMLElement {
    const open = this.#model.open.has(rank.rank);
    const mark = this.#model.marks.get(rank.rank);
    const about = [rank.mesh, rank.host, rank.device].filter(Boolean).join(" · ");
    return button({
      class: "tl-name rank", "aria-expanded": String(open), "data-row": `r${rank.rank}`, "data-testid": `rank-${rank.rank}`,
      title: `Rank ${rank.rank}${about === "" ? "" : ` · ${about.slice(0, 300)}`}${mark ? ` · ${SEVERITY[mark]}` : ""}`,
    }, () => { this.#model.toggleRank(rank.rank); this.#folded(); },
    h("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"), h("span", { class: "which" }, `Rank ${rank.rank}`),
    mark ? h("span", { class: `mark ${mark}` }, h("span", { "aria-hidden": "true" }, "●"), h("span", { class: "unseen" }, ` (${SEVERITY[mark]})`)) : null,
    rank.mesh === "" && rank.host === "" ? null : h("small", {}, named(rank.mesh.replaceAll("=", "").replaceAll(", ", " ") || rank.host, 24)));
  }

  #track(track: Track): HTMLElement {
    const folded = isFolded(this.#model.layout, this.#model.folding(), track.index);
    const name = named(track.title, 48);
    if (track.lanes < 2 && !folded) return h("div", { class: "tl-name part single", title: track.title.slice(0, 400) }, name);
    return button({
      class: "tl-name part", "aria-expanded": String(!folded), "data-row": `t${track.index}`, "data-testid": `track-${track.index}`, "data-kind": track.kind,
      title: `${track.title.slice(0, 400)} · ${counted(track.lanes, "lane")}`,
    }, () => { this.#model.toggleTrack(track.index); this.#folded(); }, h("span", { class: "twist", "aria-hidden": "true" }, folded ? "▸" : "▾"), name);
  }
}

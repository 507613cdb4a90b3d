/** Pinning and hiding ranks and lanes: two buttons at the name under the pointer, and keys for the one that has the focus. */
import { button } from "../components/controls.ts";
import { h, styled } from "../components/dom.ts";
import type { Model } from "./model.ts";

/** A row as the gutter names it: `r3` is rank 3, `t17` track 17. */
type RowName = string;

export class RowActions {
  readonly element = h("div", { class: "tl-row-acts", hidden: true });
  readonly #model: Model;
  readonly #changed: () => void;

  /** `changed` is called after a row was pinned, hidden or shown again. */
  constructor(model: Model, changed: () => void) {
    this.#model = model;
    this.#changed = changed;
  }

  /** Shows the buttons at the names within an element, which is in `frame`. */
  watch(names: HTMLElement, frame: HTMLElement): void {
    names.addEventListener("pointerover", (event) => {
      const row = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-row]") : null;
      const name = row?.dataset["row"] ?? "";
      if (!row || !/^[rt]/.test(name)) return this.hide();
      const [at, corner] = [row.getBoundingClientRect(), frame.getBoundingClientRect()];
      this.element.replaceChildren(...this.#buttons(name));
      this.element.hidden = false;
      styled(this.element, { top: `${at.top - corner.top + (at.height - this.element.offsetHeight) / 2}px`, left: `${at.right - corner.left - this.element.offsetWidth - 2}px` });
    });
    frame.addEventListener("pointerleave", () => this.hide());
    names.addEventListener("pointerleave", (event) => {
      if (!(event.relatedTarget instanceof Node) || !this.element.contains(event.relatedTarget)) this.hide();
    });
  }

  hide(): void {
    this.element.hidden = true;
  }

  /** The row that has the focus, else that of the selected event. */
  current(): RowName | null {
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset["row"] : undefined;
    if (focused !== undefined && /^[rt]\d+$/.test(focused)) return focused;
    const { selected, layout } = this.#model;
    const track = selected ? layout.tracks[layout.laneTrack[selected.lane] ?? 0] : undefined;
    return track ? (track.kind === "rank" ? `r${track.rank}` : `t${track.index}`) : null;
  }

  pin(row: RowName): void {
    const { values, id } = this.#of(row, "pinned");
    if (!values.delete(id)) values.add(id);
    this.#done();
  }

  hideRow(row: RowName): void {
    const { values, id } = this.#of(row, "hidden");
    values.add(id);
    this.#of(row, "pinned").values.delete(id);
    this.#done();
  }

  showAll(): void {
    for (const values of Object.values(this.#model.hidden)) values.clear();
    this.#done();
  }

  #of(row: RowName, what: "pinned" | "hidden"): { values: Set<number>; id: number } {
    return { values: this.#model[what][row.startsWith("r") ? "ranks" : "tracks"], id: Number(row.slice(1)) };
  }

  #done(): void {
    this.hide();
    this.#model.refold();
    this.#changed();
  }

  #buttons(row: RowName): HTMLElement[] {
    const { values, id } = this.#of(row, "pinned");
    const title = row.startsWith("r") ? `rank ${id}` : this.#model.layout.tracks[id]?.title.slice(0, 80) ?? "lane";
    const pinned = values.has(id);
    return [
      button({ tabindex: "-1", "data-testid": "row-pin", "aria-label": `${pinned ? "Unpin" : "Pin"} ${title}`, title: `${pinned ? "Unpin" : "Pin to the top"} (key P)` }, () => this.pin(row), pinned ? "unpin" : "pin"),
      button({ tabindex: "-1", "data-testid": "row-hide", "aria-label": `Hide ${title}`, title: "Hide (key H)" }, () => this.hideRow(row), "hide"),
    ];
  }
}

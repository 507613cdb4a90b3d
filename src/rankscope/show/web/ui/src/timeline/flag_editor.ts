/** Adds a flag at an instant, and changes its note: a small box at its place in the ruler. */
import { button } from "../components/controls.ts";
import { h, styled } from "../components/dom.ts";
import { formatMoment } from "../format/units.ts";
import { withFlag } from "./flags.ts";
import type { Model } from "./model.ts";
import type { Stage } from "./stage.ts";

const REACH_PX = 11;
const WIDTH_PX = 260;

export class FlagEditor {
  readonly element = h("div", { class: "tl-flag", hidden: true, role: "dialog", "aria-label": "Note", "data-testid": "flag" });
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #changed: () => void;

  constructor(model: Model, stage: Stage, changed: () => void) {
    this.#model = model;
    this.#stage = stage;
    this.#changed = changed;
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" && event.key !== "Enter") return;
      if (event.key === "Enter" && event.target instanceof HTMLButtonElement) return;
      event.preventDefault();
      event.stopPropagation();
      this.close();
    });
  }

  /** A click in the ruler: opens the flag there, else puts one. */
  click(x: number): void {
    const { flags, window, width } = this.#model;
    const perPixel = (window.to - window.from) / width;
    const at = Math.round(window.from + x * perPixel);
    const there = flags.find((flag) => at - flag.at >= -2 * perPixel && at - flag.at <= REACH_PX * perPixel);
    this.open(there?.at ?? at);
  }

  /** Puts a flag at an instant, where there is none, and opens it. */
  open(at: number): void {
    const model = this.#model;
    const text = model.flags.find((flag) => flag.at === at)?.text ?? "";
    this.#set(at, text);
    const field = h("input", { type: "text", value: text, maxlength: 200, placeholder: "Note", "aria-label": `Note at ${formatMoment(at)}`, input: () => this.#set(at, field.value) });
    this.element.replaceChildren(field,
      button({ class: "quiet", "aria-label": "Remove the flag" }, () => { this.#set(at, null); this.close(); }, "Remove"),
      button({ class: "quiet", "aria-label": "Close the note" }, () => this.close(), "×"));
    const x = ((at - model.window.from) / (model.window.to - model.window.from)) * model.width;
    const left = this.#stage.element.offsetLeft + Math.min(Math.max(0, x), Math.max(0, model.width - WIDTH_PX));
    styled(this.element, { left: `${Math.round(left)}px` });
    this.element.hidden = false;
    field.focus({ preventScroll: true });
  }

  close(): void {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.#stage.element.focus({ preventScroll: true });
  }

  #set(at: number, text: string | null): void {
    this.#model.flags = withFlag(this.#model.flags, at, text);
    this.#model.changed();
    this.#changed();
  }
}

/** Wheel, drag, pinch and keys, turned into moves of the view. */
import { rowOnScreen } from "./rows.ts";
import type { Model } from "./model.ts";
import { RULER } from "./frame.ts";
import type { Stage } from "./stage.ts";
import { panned, zoomed } from "./window.ts";

export interface Acts {
  /** A click on the picture: CSS pixels from the stage's corner. */
  pick(x: number, y: number): void;
  /** The pointer, in the window's pixels. */
  hover(x: number, y: number): void;
  leave(): void;
  measured(done: boolean): void;
  /** The view has come to rest somewhere else. */
  moved(): void;
  key(event: KeyboardEvent): boolean;
}

const STILL_PX = 4;

export class Input {
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #acts: Acts;
  readonly #pointers = new Map<number, { x: number; y: number }>();
  #dragging: { x: number; y: number; moved: boolean; measure: number | null } | null = null;
  /** What the last move was less than it should have been, in pixels. */
  #rest = 0;
  /** Set by a button: the next drag measures, for fingers have no shift key. */
  measuring = false;

  constructor(model: Model, stage: Stage, acts: Acts) {
    this.#model = model;
    this.#stage = stage;
    this.#acts = acts;
    const element = stage.element;
    element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.#down(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    element.addEventListener("pointerup", (event) => this.#up(event, true));
    element.addEventListener("pointercancel", (event) => this.#up(event, false));
    element.addEventListener("pointerleave", () => acts.leave());
    document.addEventListener("keydown", this.#key);
    element.addEventListener("dblclick", (event) => this.zoom(0.4, this.#at(event.clientX)));
  }

  /** Zooms around an instant, else around the middle. */
  zoom(factor: number, at?: number): void {
    const { window, layout } = this.#model;
    this.#model.show(zoomed(window, factor, at ?? (window.from + window.to) / 2, layout.span));
    this.#acts.moved();
  }

  /** By whole pixels of the picture, so that it can be moved instead of redrawn; what is less is kept for the next move. */
  pan(share: number): void {
    const { window, layout, pixels } = this.#model;
    const wanted = share * pixels + this.#rest;
    const whole = Math.round(wanted);
    this.#rest = wanted - whole;
    this.#model.show(panned(window, (whole * (window.to - window.from)) / pixels, layout.span));
    this.#acts.moved();
  }

  #at(clientX: number): number {
    const { window, width } = this.#model;
    const x = clientX - this.#stage.element.getBoundingClientRect().left;
    return window.from + (x / width) * (window.to - window.from);
  }

  #wheel(event: WheelEvent): void {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * unit * 0.004))), this.#at(event.clientX));
      return;
    }
    const across = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (across === 0) return; // up and down scroll the rows, then the page, as everywhere
    event.preventDefault();
    this.pan((across * unit) / this.#model.width);
  }

  #down(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.#stage.element.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    // As in Perfetto; a finger has no shift key, and moves.
    const measures = this.measuring || (event.pointerType !== "touch" && !event.shiftKey);
    const measure = measures ? this.#at(event.clientX) : null;
    this.#dragging = this.#pointers.size === 1 ? { x: event.clientX, y: event.clientY, moved: false, measure } : null;
    this.#acts.leave();
  }

  #move(event: PointerEvent): void {
    const before = this.#pointers.get(event.pointerId);
    if (!before) {
      this.#acts.hover(event.clientX, event.clientY);
      return;
    }
    const now = { x: event.clientX, y: event.clientY };
    if (this.#pointers.size === 2) {
      const other = [...this.#pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) this.#pinch(before, now, other);
    } else if (this.#dragging) this.#drag(before, now);
    this.#pointers.set(event.pointerId, now);
  }

  #drag(before: { x: number; y: number }, now: { x: number; y: number }): void {
    const drag = this.#dragging;
    if (!drag) return;
    if (!drag.moved && Math.hypot(now.x - drag.x, now.y - drag.y) < STILL_PX) return;
    const model = this.#model;
    if (drag.measure !== null) {
      const at = this.#at(now.x);
      model.measured = { from: Math.min(drag.measure, at), to: Math.max(drag.measure, at) };
      model.changed();
      this.#acts.measured(false);
    } else {
      const from = drag.moved ? before : drag;
      this.#stage.box.scrollTop -= now.y - from.y;
      this.pan(-(now.x - from.x) / model.width);
    }
    drag.moved = true;
  }

  #pinch(before: { x: number }, now: { x: number }, other: { x: number }): void {
    const [apart, nowApart] = [Math.max(12, Math.abs(before.x - other.x)), Math.max(12, Math.abs(now.x - other.x))];
    this.pan(-((now.x - before.x) / 2) / this.#model.width);
    this.zoom(apart / nowApart, this.#at((now.x + other.x) / 2));
  }

  #up(event: PointerEvent, wanted: boolean): void {
    this.#pointers.delete(event.pointerId);
    const drag = this.#dragging;
    this.#dragging = null;
    if (!drag || !wanted) return;
    const corner = this.#stage.element.getBoundingClientRect();
    if (!drag.moved) this.#acts.pick(event.clientX - corner.left, event.clientY - corner.top);
    else if (drag.measure !== null) {
      this.measuring = false;
      this.#acts.measured(true);
    }
  }

  end(): void {
    document.removeEventListener("keydown", this.#key);
  }

  /** Wherever the focus is, but where the key has a meaning of its own. */
  readonly #key = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.altKey || event.metaKey || event.ctrlKey || takesKey(event)) return;
    const moves: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), a: () => this.pan(-0.15), d: () => this.pan(0.15),
      w: () => this.zoom(0.7), s: () => this.zoom(1 / 0.7), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      ArrowUp: () => { this.#stage.box.scrollTop -= 48; }, ArrowDown: () => { this.#stage.box.scrollTop += 48; },
      PageUp: () => { this.#stage.box.scrollTop -= this.#model.height * 0.9; }, PageDown: () => { this.#stage.box.scrollTop += this.#model.height * 0.9; },
    };
    const move = this.#acts.key(event) ? (): void => undefined : moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!move) return;
    event.preventDefault();
    move();
  };
}

const TYPED = "input:not([type=checkbox]), select, textarea, [contenteditable]";
const PRESSED = "button, a, summary, input, [role=button]";
const SCROLLED = ".tl-side, .tl-below, .tl-menu, .tl-legend, nav";

/** Whether the focused element has its own use for a key: text, a press, or scrolling within a pane. */
export function takesKey({ key, target }: KeyboardEvent): boolean {
  if (!(target instanceof Element)) return false;
  if (target.closest(TYPED) || document.querySelector("dialog[open]")) return true;
  if (key === "Enter" || key === " ") return target.closest(PRESSED) !== null;
  return /^(Arrow|Page|Home|End)/.test(key) && target.closest(SCROLLED) !== null;
}

/** The row under a point of the stage, or -1. */
export function rowUnder(model: Model, y: number, scroll: number): number {
  return y < RULER ? -1 : rowOnScreen(model.rows, y - RULER, scroll);
}

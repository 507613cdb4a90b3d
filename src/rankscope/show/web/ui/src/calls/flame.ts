/** The flame graph: callers above what they call, a row for each depth, on a canvas that pointer and keyboard reach. */
import { fitted } from "../charts/font.ts";
import { h, styled } from "../components/dom.ts";
import { foldedName } from "../format/short_name.ts";
import { shownName } from "../format/text.ts";
import { color, isDark } from "../theme/theme.ts";
import { more, weight, type Node } from "./tree.ts";
import { sentence, signed, signOf } from "./words.ts";

export const ROW = 20;
const MOST_ROWS = 400;
const TEXT_FROM = 28;

export interface Box { readonly node: Node; readonly x: number; readonly y: number; readonly width: number; readonly outer: boolean }

export interface FlameState {
  readonly root: Node;
  /** What fills the width; the root for everything. */
  readonly focus: Node;
  readonly found: ReadonlySet<Node> | null;
  /** What is compared with, in words; null without a comparison. */
  readonly compared: string | null;
}

/** Where each node is drawn: those around the focus over the whole width, then it and what is inside. */
export function boxesOf(focus: Node, width: number): Box[] {
  const boxes: Box[] = [];
  const outer: Node[] = [];
  for (let at = focus.around; at?.around; at = at.around) outer.unshift(at);
  outer.forEach((node, row) => boxes.push({ node, x: 0, y: row * ROW, width, outer: true }));
  const scale = width / Math.max(weight(focus), 1);
  const place = (node: Node, x: number, row: number): void => {
    const size = weight(node) * scale;
    if (size < 0.5 || row >= MOST_ROWS) return;
    boxes.push({ node, x, y: row * ROW, width: size, outer: false });
    inside(node, x, row + 1);
  };
  const inside = (node: Node, from: number, row: number): void => {
    let x = from;
    for (const each of node.inside) {
      place(each, x, row);
      x += weight(each) * scale;
    }
  };
  if (focus.around) place(focus, 0, outer.length);
  else inside(focus, 0, 0);
  return boxes;
}

export class Flame {
  readonly element: HTMLElement;
  readonly #canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "flame graph", "data-testid": "flame",
    "aria-label": "Flame graph. Arrow keys move to callers, callees and siblings; Enter focuses, Escape goes back; the call tree shows it as a table." });
  /** Around the node at hand, over the canvas: pointing at another draws nothing anew. */
  readonly #mark = h("div", { class: "calls-mark", hidden: true });
  readonly #line = h("p", { class: "calls-line", "aria-live": "polite", "data-testid": "flame-line" });
  readonly #focus: (node: Node) => void;
  #state: FlameState | null = null;
  #boxes: Box[] = [];
  #at: Node | null = null;

  constructor(focus: (node: Node) => void) {
    this.#focus = focus;
    this.element = h("div", { class: "calls-flame" }, h("div", { class: "calls-scroll" }, this.#canvas, this.#mark), this.#line);
    this.#canvas.addEventListener("pointermove", (event) => this.#move(this.#under(event)));
    this.#canvas.addEventListener("pointerleave", () => this.#move(null));
    this.#canvas.addEventListener("click", (event) => { const box = this.#under(event); if (box) this.#focus(box); });
    this.#canvas.addEventListener("focus", () => { if (!this.#at && this.#boxes[0]) this.#move(this.#boxes[0].node); });
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(state: FlameState): void {
    this.#state = state;
    this.#at = null;
    this.draw();
    this.#say();
  }

  draw(): void {
    const state = this.#state;
    const width = this.element.clientWidth;
    if (!state || width === 0) return;
    this.#boxes = boxesOf(state.focus, width);
    const rows = 1 + this.#boxes.reduce((most, { y }) => Math.max(most, y / ROW), 0);
    const ratio = devicePixelRatio;
    const canvas = this.#canvas;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(rows * ROW * ratio)];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${rows * ROW}px`;
    const context = canvas.getContext("2d");
    if (!context) return;
    context.scale(ratio, ratio);
    paint(context, this.#boxes, state);
    canvas.dataset["drawn"] = String(this.#boxes.length);
    this.#place();
  }

  #place(): void {
    const box = this.#boxes.find(({ node }) => node === this.#at);
    this.#mark.hidden = !box;
    if (box) styled(this.#mark, { left: `${box.x}px`, top: `${box.y}px`, width: `${Math.max(2, box.width - 1)}px`, height: `${ROW - 1}px` });
  }

  #under(event: MouseEvent): Node | null {
    const { left, top } = this.#canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return this.#boxes.find((box) => y >= box.y && y < box.y + ROW && x >= box.x && x < box.x + box.width)?.node ?? null;
  }

  #move(to: Node | null): void {
    if (to === this.#at) return;
    this.#at = to;
    this.#place();
    this.#say();
  }

  #say(): void {
    const state = this.#state;
    if (!state) return;
    this.#line.textContent = this.#at ? sentence(this.#at, state.root.own.total, state.compared) : state.focus.around ? sentence(state.focus, state.root.own.total, state.compared) : "Width is time. Point at a call for its times; click or Enter to focus on it.";
  }

  #key(event: KeyboardEvent): void {
    const at = this.#at;
    const shown = (node: Node | null | undefined): Node | null => (node && this.#boxes.some((box) => box.node === node) ? node : null);
    const beside = (by: number): Node | null => (at?.around ? shown(at.around.inside[at.around.inside.indexOf(at) + by]) : null);
    const moves: Record<string, () => Node | null> = { ArrowUp: () => shown(at?.around), ArrowDown: () => shown(at?.inside[0]), ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) };
    if (event.key in moves) {
      const next = moves[event.key]!();
      if (next) this.#move(next);
      const row = this.#boxes.find((box) => box.node === this.#at);
      if (row && this.#canvas.parentElement) keepInView(this.#canvas.parentElement, row.y);
    } else if (event.key === "Enter" && at) this.#focus(at);
    else if ((event.key === "Escape" || event.key === "Backspace") && this.#state?.focus.around) this.#focus(this.#state.focus.around);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function keepInView(scroller: HTMLElement, y: number): void {
  if (y < scroller.scrollTop) scroller.scrollTop = y;
  else if (y + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y + ROW - scroller.clientHeight;
}

function paint(context: CanvasRenderingContext2D, boxes: readonly Box[], state: FlameState): void {
  const [text, muted] = [color("--text"), color("--muted")];
  const most = state.compared === null ? 0 : boxes.reduce((high, { node }) => Math.max(high, Math.abs(more(node))), 0);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const { node, x, y, width, outer } of boxes) {
    const size = Math.max(0.5, width - 1);
    const dim = outer || (state.found !== null && !state.found.has(node));
    context.fillStyle = fill(node, state.compared !== null, most);
    context.globalAlpha = dim ? 0.4 : 1;
    context.fillRect(x, y, size, ROW - 1);
    if (state.compared !== null && width > 4) hatch(context, node, x, y, size);
    context.globalAlpha = 1;
    if (state.found?.has(node)) frame(context, text, x, y, size, 1.5);
    if (width < TEXT_FROM) continue;
    context.fillStyle = dim ? muted : text;
    const difference = state.compared === null ? "" : signOf(node) === "same" ? "= " : `${signed(more(node))} `;
    label(context, `${difference}${shownName(foldedName(node.name), 200)}`, x + 4, y + ROW / 2, width - 9);
  }
}

function frame(context: CanvasRenderingContext2D, style: string, x: number, y: number, width: number, line: number): void {
  context.strokeStyle = style;
  context.lineWidth = line;
  context.strokeRect(x + line / 2, y + line / 2, Math.max(1, width - line), ROW - 1 - line);
}

/** As much of a text as there is room for, if that is more than a letter. */
function label(context: CanvasRenderingContext2D, text: string, x: number, y: number, room: number): void {
  const shown = fitted(context, text, room);
  if (shown.length > 2 || shown === text) context.fillText(shown, x, y);
}

/** Names have hues of their own, all light (or dark) enough for text; differences are orange or blue. */
function fill(node: Node, compared: boolean, most: number): string {
  const dark = isDark();
  if (compared) {
    const sign = signOf(node);
    if (sign === "same") return dark ? "hsl(210 8% 26%)" : "hsl(210 12% 88%)";
    const strength = Math.sqrt(Math.min(1, Math.abs(more(node)) / Math.max(most, 1)));
    const hue = sign === "more" ? 24 : 212;
    return dark ? `hsl(${hue} ${40 + 30 * strength}% ${24 + 8 * strength}%)` : `hsl(${hue} ${55 + 40 * strength}% ${90 - 18 * strength}%)`;
  }
  let hash = 0;
  for (let i = 0; i < node.name.length; i++) hash = (31 * hash + node.name.charCodeAt(i)) | 0;
  const hue = 20 + (Math.abs(hash) % 220);
  return dark ? `hsl(${hue} 32% 27%)` : `hsl(${hue} 55% 84%)`;
}

/** Without color: rising lines where there is more, level ones where there is less. */
function hatch(context: CanvasRenderingContext2D, node: Node, x: number, y: number, width: number): void {
  const sign = signOf(node);
  if (sign === "same") return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, ROW - 1);
  context.clip();
  context.strokeStyle = color("--hatch");
  context.lineWidth = 1.5;
  context.beginPath();
  if (sign === "more") for (let at = x - ROW; at < x + width; at += 8) { context.moveTo(at, y + ROW); context.lineTo(at + ROW, y); }
  else for (let at = y + 3; at < y + ROW; at += 5) { context.moveTo(x, at); context.lineTo(x + width, at); }
  context.stroke();
  context.restore();
}

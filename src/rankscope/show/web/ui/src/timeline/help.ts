/** The keys and gestures of the timeline, in a dialog. */
import { button } from "../components/controls.ts";
import { h } from "../components/dom.ts";

const GESTURES: readonly (readonly [string, string])[] = [
  ["Click", "select the event; in the ruler: set a flag with a note"], ["Drag", "select a range and measure it; a finger pans"], ["Shift + drag, Shift + wheel", "pan"], ["Ctrl + wheel, pinch, double-click", "zoom at the pointer"],
];

const KEYS: readonly (readonly [string, string])[] = [
  ["W S, + −", "zoom in, out"], ["A D, ← →", "pan left, right"], ["↑ ↓, Page", "scroll up, down"],
  ["F", "focus: zoom to the selection"], ["M", "mark: measure the selection or the visible range"], ["0", "entire run"], ["C", "critical path of the step in view"],
  ["/", "find by name"], ["N, Shift + N", "next, previous match"], ["[ ]", "previous, next event with this name"], ["T, Shift + T", "all events with this name as a track, of all ranks"],
  [", .", "previous, next event in the lane"], ["J K", "lane below, above"], ["E", "select: in the middle of the focused or pinned rank, else of the view"], ["{ }", "previous, next step"],
  ["P H", "pin, hide the focused name or the selection’s lane"], ["Shift + M", "set a flag with a note"],
  ["Enter", "go to the selection’s pane; in the flame graph: focus"], ["Escape", "close the measurement or selection"], ["?", "this help"],
];

/** Lines from the selected event, as flows.ts draws them. */
const LINES: readonly (readonly [string, string])[] = [["launch", "its launch or its kernels"], ["operator", "the operator of its launch"], ["collective", "the end of the same collective on another rank"], ["autograd", "forward to backward"]];

export class Help {
  readonly element: HTMLDialogElement;

  constructor() {
    const list = (title: string, entries: typeof KEYS): HTMLElement =>
      h("section", {}, h("h3", {}, title), h("dl", { class: "tl-keys" }, entries.map(([keys, does]) => h("div", {}, h("dt", {}, keys), h("dd", {}, does)))));
    this.element = h("dialog", { class: "tl-dialog", "aria-label": "Keyboard and mouse", "data-testid": "help",
      click: (event) => { if (event.target === this.element) this.element.close(); } },
    h("div", {}, h("div", { class: "tl-panel-head" }, h("h2", {}, "Keyboard and mouse"), button({ class: "quiet", "aria-label": "Close the help" }, () => this.element.close(), "×")),
      h("p", { id: "tl-help" }, "A rank’s summary lane shows compute on top and data movement below; vertical lines mark steps, ● marks a finding. A drag measures, Shift and a drag pan. Keys: W A S D zoom and pan, E selects, F zooms to the selection, ? lists all keys."),
      list("Keys", KEYS), list("Mouse and touch", GESTURES),
      h("section", {}, h("h3", {}, "Lines from the selected event"), h("dl", { class: "tl-keys" }, LINES.map(([kind, leads]) => h("div", {}, h("dt", {}, h("span", { class: `tl-line ${kind}`, "aria-hidden": "true" })), h("dd", {}, leads)))))));
  }

  toggle(): void {
    if (this.element.open) this.element.close();
    else this.element.showModal();
  }
}

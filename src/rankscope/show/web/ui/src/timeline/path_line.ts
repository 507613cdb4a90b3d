/** The critical path of the step in the middle of the view: fetched, named in a line above the picture, drawn through its events. */
import type { Router } from "../app/router.ts";
import { button, selector } from "../components/controls.ts";
import { h } from "../components/dom.ts";
import { ApiError } from "../data/api.ts";
import { formatRanks } from "../format/ranks.ts";
import { formatDuration } from "../format/units.ts";
import type { Palette } from "./frame.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import { apart, boxesOf, firstPath, pathOf, readPath, stepInView, type Path, type PathOf } from "./path.ts";
import { screenTop, standIn, type Rows } from "./rows.ts";

/** One that is being computed is asked for again after so long. */
const AGAIN_MS = 1000;
const DIMMED = 0.7;

export class CriticalPath {
  readonly element = h("div", { class: "tl-path", role: "status", hidden: true, "data-testid": "path" });
  readonly #model: Model;
  readonly #router: Router;
  readonly #notice: Notice;
  readonly #changed: () => void;
  /** What was asked for last: which path, and of which step. */
  #asked = "";
  #timer = 0;

  /** `changed` is called when the reader turns the path on or off. */
  constructor(model: Model, router: Router, notice: Notice, changed: () => void) {
    this.#model = model;
    this.#router = router;
    this.#notice = notice;
    this.#changed = changed;
    model.onDraw(() => this.follow());
  }

  toggle(): void {
    this.choose(this.#model.pathOf === null ? firstPath(this.#model.layout) : null);
  }

  choose(of: PathOf | null): void {
    this.#model.pathOf = of;
    this.#model.changed();
    this.#changed();
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  /** Fetches the path of the step that has come into view. */
  follow(): void {
    const model = this.#model;
    if (model.pathOf === null) {
      [this.#asked, model.path, this.element.hidden] = ["", null, true];
      return;
    }
    const at = stepInView(model, model.pathOf);
    const asked = `${model.pathOf} ${at}`;
    if (asked !== this.#asked) void this.#fetch(asked, at, model.pathOf);
  }

  async #fetch(asked: string, at: number, of: PathOf): Promise<void> {
    this.#asked = asked;
    clearTimeout(this.#timer);
    const model = this.#model;
    try {
      const file = await model.api.columns("path", { at, ...(of === "all" ? {} : { rank: of }) });
      if (asked !== this.#asked) return;
      model.path = pathOf(file, of);
      this.#name(model.path);
      this.#notice.answered();
      model.changed();
    } catch (error) {
      if (asked !== this.#asked) return;
      model.path = null;
      if (error instanceof ApiError && error.status === 409) {
        this.#timer = window.setTimeout(() => { if (asked === this.#asked) void this.#fetch(asked, at, of); }, AGAIN_MS);
        return this.#show("The critical path is being computed …");
      }
      this.choose(null);
      if (error instanceof ApiError) this.#notice.tell(error.message, error.hint);
      else this.#notice.say(error);
    }
  }

  #name(path: Path): void {
    const { layout } = this.#model;
    const ranks = [...new Set(path.rank)].sort((a, b) => a - b);
    const whole = (path.end.at(-1) ?? 0) - (path.start[0] ?? 0);
    const step = path.step === null ? "" : ` of step ${path.step}`;
    const text = `Critical path${step}: ${formatDuration(whole)}${path.of === "all" ? ` on ${ranks.length === 1 ? "rank" : "ranks"} ${formatRanks(ranks)}` : ""}.`;
    this.#show(text,
      layout.ranks.length > 1 && selector("path-of", "Path", [{ value: "all", label: "across ranks" }, ...layout.ranks.map(({ rank }) => ({ value: String(rank), label: `rank ${rank}` }))], String(path.of), (value) => this.choose(readPath(value))),
      h("a", { class: "link", href: this.#router.href("critical_path", path.step === null ? {} : { step: path.step }) }, "Time by category"));
    Object.assign(this.element.dataset, { step: String(path.step ?? ""), parts: String(path.rank.length), ranks: ranks.join(".") });
    this.#notice.announce(text);
  }

  #show(text: string, ...more: (Node | false)[]): void {
    this.element.replaceChildren(h("span", {}, text), ...more.filter((each) => each !== false), button({ class: "quiet", "aria-label": "Hide the critical path", title: "Key C" }, () => this.choose(null), "×"));
    this.element.hidden = false;
  }
}

/** Dims all that is not on the path, and draws a line along it: solid over events, dashed where nothing is recorded. */
export function drawPath(c: CanvasRenderingContext2D, model: Model, rows: Rows, scroll: number, palette: Palette): void {
  const { path, layout, window, width, height } = model;
  if (!path) return;
  const rowOf = new Map<number, number>();
  const boxes = boxesOf(path, window.from, window.to, width, (lane) => {
    let row = rowOf.get(lane);
    if (row === undefined) rowOf.set(lane, row = standIn(layout, rows, lane));
    return row;
  });
  const shown = (row: number): { top: number; bottom: number } => {
    const top = screenTop(rows, row, scroll);
    const above = row < rows.pinned ? 0 : rows.pinnedHeight;
    return { top: Math.max(top, above), bottom: Math.max(top + rows.size[row]!, above) };
  };
  c.beginPath();
  c.rect(0, rows.namesHeight, width, height); // not the tracks of names, which were asked for
  for (const { x0, x1, row } of apart(boxes)) {
    const { top, bottom } = shown(row);
    if (bottom > top) c.rect(x0, top, x1 - x0, bottom - top);
  }
  c.fillStyle = palette.surface;
  c.globalAlpha = DIMMED;
  c.fill("evenodd");
  c.globalAlpha = 1;
  for (const [wide, ink] of [[4, palette.surface], [2, palette.text]] as const) {
    c.lineWidth = wide;
    c.strokeStyle = ink;
    for (const dashed of [true, false]) {
      c.setLineDash(dashed ? [3, 3] : []);
      c.beginPath();
      boxes.forEach(({ x0, x1, row }, index) => {
        const y = middle(shown(row));
        if (!dashed) {
          c.moveTo(x0, y);
          c.lineTo(x1, y);
        }
        const next = boxes[index + 1];
        if (!next || (next.x0 - x1 > 2) !== dashed) return;
        c.moveTo(x1, y);
        c.lineTo(next.x0, middle(shown(next.row)));
      });
      c.stroke();
    }
  }
  c.setLineDash([]);
}

function middle({ top, bottom }: { top: number; bottom: number }): number {
  return (top + bottom) / 2;
}

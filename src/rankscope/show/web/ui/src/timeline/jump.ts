/** Leaps to a step, a rank, a finding. */
import type { Finding } from "../data/payload.ts";
import { shownName } from "../format/text.ts";
import { placeOf, rankIndex, stepWindow } from "./layout.ts";
import type { Model } from "./model.ts";
import type { Notice } from "./notice.ts";
import type { Permalink } from "./permalink.ts";
import type { Stage } from "./stage.ts";
import type { Window } from "./window.ts";

export class Jump {
  readonly #model: Model;
  readonly #stage: Stage;
  readonly #permalink: Permalink;
  readonly #notice: Notice;

  constructor(model: Model, stage: Stage, permalink: Permalink, notice: Notice) {
    this.#model = model;
    this.#stage = stage;
    this.#permalink = permalink;
    this.#notice = notice;
  }

  toWindow(window: Window): void {
    this.#notice.left();
    this.#permalink.go(window);
  }

  toStep(step: number, rank: number | null = null): void {
    const window = stepWindow(this.#model.layout, step, rank);
    if (window) this.toWindow(window);
  }

  /** The step before or after the one in the middle of the view. */
  byStep(by: number): void {
    const { layout, window } = this.#model;
    const steps = layout.ranks[0]?.steps.filter((one) => one.step !== null) ?? [];
    const middle = (window.from + window.to) / 2;
    const now = steps.findIndex((one) => one.end > middle);
    const next = steps[Math.max(0, Math.min(steps.length - 1, (now < 0 ? steps.length : now) + by))];
    if (next?.step !== null && next !== undefined) this.toStep(next.step);
  }

  toRank(rank: number): void {
    this.#model.toggleRank(rank, true);
    this.scrollToRank(rank);
    this.#permalink.push();
  }

  scrollToRank(rank: number, by = 0): void {
    const { layout, rows } = this.#model;
    const index = rankIndex(layout, rank);
    const row = rows.rowOfRank[index] ?? -1;
    this.#model.jumped = row >= 0 ? index : null;
    if (row >= rows.pinned) this.#stage.box.scrollTop = Math.max(0, (rows.top[row] ?? 0) - rows.pinnedHeight + by);
    this.#stage.request();
  }

  toFinding(finding: Finding): void {
    const { rank, step } = placeOf(finding);
    if (rank !== null) this.#model.toggleRank(rank, true);
    const window = step === null ? null : stepWindow(this.#model.layout, step, rank);
    if (window) this.#model.show(window);
    if (rank !== null) this.scrollToRank(rank);
    this.#permalink.push();
    this.#notice.announce(`${shownName(finding.title, 200)}.`);
  }
}

/** Keeps the page's address true to the view, so that it can be sent on and Back works. */
import type { Router } from "../app/router.ts";
import { rounded, writeAddress } from "./address.ts";
import type { Model } from "./model.ts";
import type { Stage } from "./stage.ts";
import type { Window } from "./window.ts";

const NOTE_PAUSE_MS = 250;

export class Permalink {
  readonly #router: Router;
  readonly #model: Model;
  readonly #stage: Stage;
  #noting = 0;

  constructor(router: Router, model: Model, stage: Stage) {
    this.#router = router;
    this.#model = model;
    this.#stage = stage;
  }

  /** Small moves change the address in place, some time after the last of them. */
  note(): void {
    clearTimeout(this.#noting);
    this.#noting = window.setTimeout(() => {
      this.#noting = 0;
      if (!this.#router.leaving) this.#router.note(this.#address());
    }, NOTE_PAUSE_MS);
  }

  /** A leap: Back leads to where the reader was. */
  push(): void {
    this.#forget();
    this.#router.push(this.#address());
  }

  /** A change that Back undoes: it leads to where the reader was just before. */
  leap(change: () => void): void {
    this.#router.note(this.#address());
    change();
    this.push();
  }

  /** Shows a window, as a leap from where the reader is now. */
  go(window: Window): void {
    this.leap(() => {
      delete this.#stage.element.dataset["settled"];
      this.#model.show(window);
    });
  }

  /** The address is left true to the last view. */
  end(): void {
    if (this.#noting !== 0 && !this.#router.leaving) this.#router.note(this.#address());
    this.#forget();
  }

  #forget(): void {
    clearTimeout(this.#noting);
    this.#noting = 0;
  }

  #address(): Record<string, string> {
    const model = this.#model;
    const at = this.#stage.topRank();
    model.window = rounded(model.window);
    this.#stage.rest();
    const first = rounded(model.firstWindow);
    const untouched = model.window.from === first.from && model.window.to === first.to;
    return writeAddress({
      window: untouched ? null : model.window, selected: model.selected, measured: model.measured, calls: model.calls, open: model.open, tracks: model.tracks,
      filter: model.filter, query: model.query, counters: model.showCounters, at,
      pinned: model.pinned, hidden: model.hidden, minor: model.minor, order: model.order, groupBy: model.groupBy, openGroups: model.openGroups, path: model.pathOf, flags: model.flags, nameTracks: model.nameTracks,
    }, { open: model.openAtFirst, pinned: model.pinnedAtFirst, groupBy: model.groupAtFirst });
  }
}

/** What the timeline says in words: a line above the picture, and a line for those who do not see it. */
import { inline } from "../components/doc_text.ts";
import { h, named } from "../components/dom.ts";
import { ApiError } from "../data/api.ts";
import { shownName } from "../format/text.ts";

const HINT_MS = 5000;

export class Notice {
  readonly element = h("div", { class: "tl-notice", role: "status", hidden: true });
  readonly live = h("p", { class: "unseen", role: "status", "data-testid": "live" });
  /** Over the picture: what a key did, or what it needs. */
  readonly toast = h("p", { class: "tl-busy tl-toast", "aria-hidden": "true", hidden: true, "data-testid": "hint" });
  #hiding = 0;
  /** It is about the requested place, and remains when the server answers. */
  #stays = false;

  announce(text: string): void {
    this.live.textContent = text;
  }

  /** The same for a moment also over the picture. */
  hint(text: string): void {
    this.announce(text);
    this.toast.textContent = text;
    this.toast.hidden = false;
    clearTimeout(this.#hiding);
    this.#hiding = window.setTimeout(() => { this.toast.hidden = true; }, HINT_MS);
  }

  /** A message about the requested place: shown until another is opened. */
  tell(what: string, hint: string): void {
    this.#show(what, hint);
    this.#stays = true;
  }

  /** A problem with the server: shown until it answers again. */
  say(error: unknown): void {
    const [what, hint] = error instanceof ApiError ? [error.message, error.hint] : ["The timeline could not read the server’s response.", error instanceof Error ? error.message : ""];
    this.#show(what, hint);
    this.#stays = false;
  }

  answered(): void {
    this.element.hidden ||= !this.#stays;
  }

  end(): void {
    clearTimeout(this.#hiding);
  }

  left(): void {
    if (this.#stays) this.element.hidden = true;
  }

  #show(what: string, hint: string): void {
    this.element.replaceChildren(h("strong", {}, named(what, 300)), " ", h("span", {}, inline(shownName(hint, 400))));
    this.element.hidden = false;
  }
}

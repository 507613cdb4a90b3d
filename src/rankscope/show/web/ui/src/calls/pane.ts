/** The calls of a measured range: what to show, of which ranks, compared with what; as a flame graph or a table. */
import { button, selector, type Choice } from "../components/controls.ts";
import { inline } from "../components/doc_text.ts";
import { append, h } from "../components/dom.ts";
import { isAbort, ServerApi, type Api } from "../data/api.ts";
import { matcher } from "../format/pattern.ts";
import { counted } from "../format/ranks.ts";
import { shownName } from "../format/text.ts";
import { formatDuration, formatRatio, grouped } from "../format/units.ts";
import { ranges } from "../timeline/lists.ts";
import { onThemeChange } from "../theme/theme.ts";
import { isLive, type ViewContext } from "../views/view.ts";
import type { Layout } from "../timeline/layout.ts";
import type { Window } from "../timeline/window.ts";
import { Flame } from "./flame.ts";
import { otherWindow } from "./other_run.ts";
import { writeAgainst, type CallsChoice } from "./choice.ts";
import { CallTable } from "./table.ts";
import { atFocus, focusOf, inverted, matched, readTrees, treeOf, type Node, type Part, type Trees } from "./tree.ts";

export interface CallsActs {
  /** The reader chose something: by a click (`leap`), which Back undoes, or by typing. */
  chosen(choice: CallsChoice, leap: boolean): void;
  failed(error: unknown): void;
}

const CALLED: Readonly<Record<CallsChoice["by"], string>> = { operators: "Operators and ranges", frames: "Python frames", modules: "Modules" };
const RECORD: Readonly<Record<CallsChoice["by"], string>> = {
  operators: "No operators or named ranges are recorded in this range.",
  frames: "No Python frames are recorded in this range: record with `with_stack=True`.",
  modules: "No calls of nn.Modules are recorded in this range: record with `with_stack=True` (a compiled module hides those inside).",
};

export class CallsPane {
  readonly element = h("div", { class: "calls", "data-testid": "calls" });
  readonly #context: ViewContext;
  readonly #api: Api;
  readonly #layout: Layout;
  readonly #window: Window;
  readonly #ranks: readonly number[];
  readonly #acts: CallsActs;
  readonly #flame: Flame;
  readonly #table: CallTable;
  readonly #words = h("p", { class: "quiet-line", "data-testid": "calls-words" });
  readonly #matches = h("span", { class: "count" });
  readonly #way = h("div", { class: "calls-way" });
  readonly #search: HTMLInputElement;
  readonly #controls = h("div", { class: "calls-bar" });
  #choice: CallsChoice;
  #root: Node | null = null;
  /** What the tree was made of, to turn it around without asking again. */
  #answer: { readonly trees: Trees; readonly other: Trees | null } | null = null;
  #stop: () => void;
  #asked = 0;

  constructor(context: ViewContext, api: Api, layout: Layout, window: Window, ranks: readonly number[], choice: CallsChoice, acts: CallsActs) {
    this.#context = context;
    this.#api = api;
    this.#layout = layout;
    this.#window = window;
    this.#ranks = ranks;
    this.#choice = choice;
    this.#acts = acts;
    const focus = (node: Node): void => this.#choose({ focus: focusOf(node) });
    this.#flame = new Flame(focus);
    this.#table = new CallTable(focus);
    this.#search = h("input", { type: "search", placeholder: "Find a name", "aria-label": "Find in the calls; /…/ is a regular expression", "data-testid": "calls-search", value: choice.find, input: () => this.#find() });
    this.#stop = onThemeChange(() => this.#flame.draw());
    this.element.append(this.#controls, this.#way, h("div", { class: "calls-body" }), this.#words);
    void this.#load();
  }

  end(): void {
    this.#asked++;
    this.#stop();
  }

  /** Shows another choice of the same range: what was fetched is used again where it can be. */
  show(choice: CallsChoice): void {
    const before = this.#choice;
    this.#choice = choice;
    if (this.#search.value.trim() !== choice.find) this.#search.value = choice.find;
    const same = before.by === choice.by && before.rank === choice.rank && writeAgainst(before) === writeAgainst(choice);
    if (!same || !this.#answer) return void this.#load();
    if (before.inverted !== choice.inverted) {
      this.#bar();
      this.#made(this.#answer.trees, this.#answer.other);
    }
    this.#draw();
  }

  #choose(changes: Partial<CallsChoice>): void {
    // Turned around, the paths are others.
    const choice = { ...this.#choice, ...(changes.inverted === undefined ? {} : { focus: "" }), ...changes };
    this.#acts.chosen(choice, true);
    this.show(choice);
  }

  #find(): void {
    this.#choice = { ...this.#choice, find: this.#search.value.trim() };
    this.#acts.chosen(this.#choice, false);
    this.#draw();
  }

  async #load(): Promise<void> {
    const asked = ++this.#asked;
    const choice = this.#choice;
    this.#answer = null;
    this.#bar();
    try {
      const ask = async (api: Api, window: Window, ranks: readonly number[] | null): Promise<Trees> =>
        readTrees(await api.columns("calls", { from: window.from, to: window.to, by: choice.by, ...(ranks === null ? {} : { ranks: ranges([...ranks].sort((a, b) => a - b)) }) }));
      const trees = await ask(this.#api, this.#window, this.#needed());
      let other: Trees | null = null;
      if (choice.against !== null && typeof choice.against === "object" && "run" in choice.against) {
        const api = new ServerApi(choice.against.run);
        const window = await otherWindow(api, this.#layout, this.#window);
        other = await ask(api, window, choice.rank === null ? null : [choice.rank]);
      }
      if (asked !== this.#asked) return;
      this.#answer = { trees, other };
      this.#made(trees, other);
      this.#draw();
    } catch (error) {
      if (asked === this.#asked && !isAbort(error)) this.#acts.failed(error);
    }
  }

  /** The ranks of both sides. */
  #needed(): number[] {
    const { rank, against } = this.#choice;
    const own = rank === null || against === "others" ? this.#ranks : [];
    const other = against !== null && typeof against === "object" && "rank" in against ? [against.rank] : [];
    return [...new Set([...own, ...(rank === null ? [] : [rank]), ...other])];
  }

  #made(trees: Trees, other: Trees | null): void {
    const { rank, against, by } = this.#choice;
    const compared = against !== null;
    const less = typeof against === "object" && against && "rank" in against ? against.rank : null;
    const ownRanks = new Set(rank !== null ? [rank] : trees.ranks.filter((each) => each !== less));
    const own: Part = { trees, ranks: ownRanks, mean: compared };
    const rest: Part | null = !compared ? null
      : other ? { trees: other, ranks: new Set(other.ranks), mean: true }
      : { trees, ranks: new Set(less !== null ? [less] : trees.ranks.filter((each) => each !== rank)), mean: true };
    const tree = treeOf(own, rest);
    this.#root = this.#choice.inverted ? inverted(tree) : tree;
    const sentences = [
      trees.calls === 0 ? RECORD[by] : `${grouped(trees.calls)} calls of ${counted(trees.ranks.length, "rank")}, threads added up${compared && ownRanks.size > 1 ? "; mean of a rank" : ""}.`,
      trees.leftOut.length > 0 ? `Left out, as the range has too many calls: ${counted(trees.leftOut.length, "rank")}. Choose a shorter range or fewer ranks.` : "",
      trees.nodes > trees.name.length ? `The ${grouped(trees.name.length)} paths with the most time of ${grouped(trees.nodes)} are shown.` : "",
      this.#context.served?.leftOut.length ? "This report leaves some events out, so times may be too small here; `rankscope serve DIR` shows all." : "",
    ];
    this.#words.replaceChildren();
    append(this.#words, inline(sentences.filter((each) => each !== "").join(" ")));
  }

  #draw(): void {
    const root = this.#root;
    if (!root) return;
    const { shape } = this.#choice;
    const focus = atFocus(root, this.#choice.focus);
    const matches = matcher(this.#search.value.trim());
    const found = matches ? matched(root, matches) : null;
    this.#matches.textContent = !found ? "" : `${counted(found.nodes.size, "match", "matches")}, ${formatDuration(found.time, 3)}${root.own.total > 0 ? ` (${formatRatio(found.time / root.own.total)})` : ""}`;
    const compared = this.#versus();
    const state = { root, focus, found: found?.nodes ?? null, compared };
    this.#way.replaceChildren(...this.#wayTo(focus), ...(compared === null || shape !== "flame" ? [] : [legend(compared)]));
    this.element.querySelector(".calls-body")!.replaceChildren(shape === "flame" ? this.#flame.element : this.#table.element);
    if (shape === "flame") this.#flame.show(state);
    else this.#table.show({ ...state, ranks: this.#ranks, inverted: this.#choice.inverted });
    this.element.dataset["drawn"] = `${shape}-${this.#choice.by}`;
  }

  /** What is compared with, in words; null without a comparison. */
  #versus(): string | null {
    const { against } = this.#choice;
    if (against === null) return null;
    if (against === "others") return "the mean of the other ranks";
    return "rank" in against ? `rank ${against.rank}` : `run ${shownName(this.#context.served?.runs.find(({ key }) => key === against.run)?.name ?? against.run, 40)}`;
  }

  #wayTo(focus: Node): HTMLElement[] {
    if (!focus.around) return [];
    return [h("span", {}, `Focused: ${shownName(focus.name, 60)}`), button({ class: "quiet" }, () => this.#choose({ focus: focusOf(focus.around!) }), "One up"), button({ class: "quiet", "data-testid": "calls-all" }, () => this.#choose({ focus: "" }), "Show all")];
  }

  #bar(): void {
    const { by, rank, against, inverted: turned } = this.#choice;
    const every: Choice[] = this.#layout.ranks.map((each) => ({ value: String(each.rank), label: `rank ${each.rank}` }));
    const { served } = this.#context;
    const runs: Choice[] = !isLive(served) ? [] : served.runs.filter(({ key }) => key !== (served.api.run ?? served.shown)).map(({ key, name }) => ({ value: `run-${key}`, label: `run ${shownName(name, 40)}` }));
    const versus: Choice[] = [{ value: "none", label: "nothing" }, ...(rank !== null && every.length > 1 ? [{ value: "others", label: "mean of the others" }] : []), ...(every.length > 1 ? every.filter(({ value }) => value !== String(rank)) : []), ...runs];
    const all = this.#ranks.length === this.#layout.ranks.length ? `all ${every.length} added up` : `${this.#ranks.length} shown, added up`;
    const now = writeAgainst(this.#choice);
    const parts = [
      selector("calls-by", "Calls", Object.entries(CALLED).map(([value, label]) => ({ value, label })), by, (value) => this.#choose({ by: value as CallsChoice["by"] })),
      ...(every.length > 1 ? [selector("calls-rank", "Ranks", [{ value: "all", label: all }, ...every], rank === null ? "all" : String(rank), (value) => this.#choose({ rank: value === "all" ? null : Number(value), against: against === "others" && value === "all" ? null : against }))] : []),
      ...(versus.length > 1 ? [selector("calls-against", "Compare with", versus, now, (value) => this.#choose({ against: value === "none" ? null : value === "others" ? "others" : value.startsWith("run-") ? { run: value.slice(4) } : { rank: Number(value) } }))] : []),
      h("button", { type: "button", class: "quiet", "aria-pressed": String(turned), title: "From each name to its callers", "data-testid": "calls-invert", click: () => this.#choose({ inverted: !turned }) }, "Invert"),
      this.#search, this.#matches,
    ];
    const had = document.activeElement instanceof HTMLElement && this.#controls.contains(document.activeElement) ? document.activeElement.dataset["testid"] : undefined;
    this.#controls.replaceChildren(...parts);
    if (had) this.#controls.querySelector<HTMLElement>(`[data-testid="${CSS.escape(had)}"]`)?.focus({ preventScroll: true });
  }
}

function legend(compared: string): HTMLElement {
  const item = (kind: string, text: string): HTMLElement => h("span", { class: "calls-key" }, h("span", { class: `calls-swatch ${kind}`, "aria-hidden": "true" }), text);
  return h("div", { class: "calls-legend", "data-testid": "calls-legend" }, item("more", `+ more time than ${compared}`), item("less", "− less"), item("same", "= within 1 %"), h("span", {}, "Width: both together."));
}

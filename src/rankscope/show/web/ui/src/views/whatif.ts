/** What a step would take with some changes: switches, the predicted step, and one step as recorded and as replayed. */
import { stepLanes, stepLegend } from "../charts/step_lanes.ts";
import { button, copyButton, selector } from "../components/controls.ts";
import { inline } from "../components/doc_text.ts";
import { append, h, named, type Child } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import { tables } from "../components/tables.ts";
import { isJudged, optionsUpTo, placedRows, waterfall } from "../components/waterfall.ts";
import { ApiError, isAbort } from "../data/api.ts";
import type { Table } from "../data/table.ts";
import { fixedBy, fixOption, normal, numbersIn, optionsIn, type Answer, type Fixed, type Scenario } from "../data/whatif.ts";
import { counted } from "../format/ranks.ts";
import { factLabel, shownName } from "../format/text.ts";
import { exactCell, formatDuration, formatRatio } from "../format/units.ts";
import { isLive, present, type View, type ViewContext } from "./view.ts";

const NETWORKS = ["", "1.5", "2", "4", "10"] as const;
const NETWORK = /^--network ([\d.]+)x$/;

export const whatif: View = {
  id: "whatif",
  title: "What if",
  group: "run",
  question: "What would a step take without this?",
  shows: ["whatif"],
  wants: ["stragglers"],
  render(context) {
    const table = context.table("whatif");
    if (!table) return [emptyState("No step to replay.", "A replay needs launches, device work or collectives of recorded steps.")];
    const fold = tables(context, [{ name: "whatif" }]);
    if (table.number(0, "explained") === null || !context.served) return present([waterfall(context, table), fold]);
    return present([...new Explorer(context, table).parts, fold]);
  },
};

/** An element's id for an option, by which the focus returns to it. */
function idOf(option: string): string {
  return `whatif${option.replace(/\W+/g, "-")}`;
}

/** The switches and what they give. Its state is the address: options of `rankscope whatif`. */
class Explorer {
  readonly #context: ViewContext;
  readonly #table: Table;
  readonly #fall = h("div", {});
  readonly #switches = h("form", { class: "whatif-switches", "aria-label": "Changes", submit: (event) => event.preventDefault() });
  readonly #outcome = h("div", { class: "whatif-outcome", role: "status", "data-testid": "whatif-outcome" });
  readonly #picture = h("div", { class: "whatif-picture" });
  #options: string[];
  /** The latest answer: what can be changed, and the step as recorded. */
  #latest: Answer | null = null;
  #asking: AbortController | null = null;

  constructor(context: ViewContext, table: Table) {
    this.#context = context;
    this.#table = table;
    this.#options = normal(optionsIn(context.place.params.get("with") ?? ""));
    context.onPlace((place) => { this.#options = normal(optionsIn(place.params.get("with") ?? "")); void this.#ask(); });
    context.onLeave(() => this.#asking?.abort());
    void this.#ask();
  }

  get parts(): Node[] {
    return [h("div", { class: "whatif" }, h("div", { class: "whatif-side" }, this.#outcome, this.#switches), h("div", { class: "whatif-main" }, this.#picture, this.#fall))];
  }

  #change(options: readonly string[]): void {
    this.#options = normal(options);
    this.#context.router.push({ with: this.#options.join(" ") });
    void this.#ask();
  }

  async #ask(): Promise<void> {
    this.#asking?.abort();
    const asking = new AbortController();
    this.#asking = asking;
    const api = this.#context.served?.api;
    const rows = placedRows(this.#table);
    const prefix = rows.map((_, index) => optionsUpTo(this.#table, rows, index)).find((text) => normal(optionsIn(text)).join(" ") === this.#options.join(" "));
    this.#fall.replaceChildren(waterfall(this.#context, this.#table, prefix));
    this.#picture.setAttribute("aria-busy", "true");
    try {
      if (this.#options.length > 0) this.#latest ??= await api!.json<Answer>("whatif", {}, asking.signal); // for a refusal
      this.#latest = await api!.json<Answer>("whatif", this.#options.length === 0 ? {} : { with: this.#options.join(" ") }, asking.signal);
      this.#show(this.#latest);
    } catch (error) {
      if (isAbort(error)) return;
      this.#refuse(error);
    }
    this.#picture.removeAttribute("aria-busy");
  }

  #show(answer: Answer): void {
    const { step_ns: step, recorded_ns: recorded, replayed_ns: replayed } = answer;
    this.#drawSwitches();
    const gain = step === null ? 0 : replayed - step;
    this.#outcome.replaceChildren(
      step === null ? h("p", { class: "whatif-step" }, h("strong", { "data-testid": "whatif-step", "data-value": "" }, "Not judged"))
        : h("p", { class: "whatif-step" }, this.#options.length > 0 ? h("s", { title: `as replayed; recorded: ${formatDuration(recorded)}` }, formatDuration(replayed)) : null,
          h("strong", { "data-testid": "whatif-step", "data-value": step, title: exactCell(step, "ns") }, formatDuration(step)),
          this.#options.length > 0 ? h("span", { class: gain > 0 ? "step-saved" : "" }, `${gain < 0 ? "+" : "−"}${formatDuration(Math.abs(gain), 3)} (${formatRatio(Math.abs(gain) / Math.max(replayed, 1))})`) : h("span", {}, "per step as recorded")),
      h("p", { class: "whatif-words" }, this.#options.length > 0 ? [`Mean of ${counted(answer.steps, "step")} with: `, answer.names.map((name, index) => [index > 0 && "; ", named(name, 90)])] : "Switch a change on to see the step with it."), this.#options.length > 0 ? this.#command() : "");
    this.#drawPicture(answer);
  }

  #drawPicture(answer: Answer): void {
    const late = this.#context.payload.diagnosis?.stragglers.ranks ?? [];
    const marked = new Set([...late, ...this.#options.flatMap((option) => fixedBy(option)?.ranks ?? [])]);
    const some = answer.ranks.length < answer.of ? `${answer.ranks.length} of ${answer.of} ranks: late ones, and others from the one that waits least to the one that waits most` : "";
    const title = this.#options.length === 0 || !answer.judged ? "As replayed" : `As replayed: ${answer.names.length === 1 ? shownName(answer.names[0] ?? "", 90) : `with ${answer.names.length} changes`}`;
    this.#picture.replaceChildren(h("section", { "aria-labelledby": "step-lanes-title" },
      h("div", { class: "section-head" }, h("h3", { id: "step-lanes-title" }, answer.step === null ? "The recorded window" : `Step ${answer.step}`, h("small", {}, answer.step === null ? "" : `, nearest to the median of ${answer.steps}`)), some !== "" && h("p", { class: "muted" }, some)),
      h("div", { class: "figure" }, stepLegend(answer), stepLanes({ answer, marked, title }),
        answer.replayed || answer.step_ns === null ? null : h("p", { class: "caption" }, "The report has no room for the lanes of this replay; ", h("code", {}, "rankscope serve RUN"), " draws them."),
        h("p", { class: "caption" }, "Each rank has three lanes: its host, its device, and its collectives, which wait for their last rank and then transfer. Marked: late or changed ranks."))));
  }

  #refuse(error: unknown): void {
    const [what, hint] = error instanceof ApiError ? [error.message, error.hint] : ["The answer cannot be read.", "Reload the page."];
    this.#drawSwitches();
    this.#outcome.replaceChildren(h("p", { class: "whatif-step" }, h("strong", { class: "words", "data-testid": "whatif-step", "data-value": "" }, "No answer here")),
      h("p", { class: "whatif-words" }, inline(`${what} ${hint}`)), this.#options.length > 0 ? this.#command() : "");
    if (this.#latest) this.#drawPicture({ ...this.#latest, step_ns: null, replayed: null });
    else this.#picture.replaceChildren();
  }

  #command(): HTMLElement {
    const command = `rankscope whatif RUN ${this.#options.join(" ")}`;
    return h("p", { class: "whatif-command" }, h("code", { "data-testid": "whatif-command" }, command), copyButton({ class: "quiet" }, "Copy", "Select it", () => command),
      button({ class: "quiet", "data-testid": "whatif-reset" }, () => this.#change([]), "Switch all off"));
  }

  #drawSwitches(): void {
    const offers = this.#latest?.offers;
    if (!offers || !isJudged(this.#table)) return;
    const focused = document.activeElement?.id ?? "";
    this.#switches.replaceChildren();
    append(this.#switches, [this.#rankSwitches(offers), this.#others(offers)]);
    if (focused !== "") document.getElementById(focused)?.focus({ preventScroll: true });
  }

  /** The first option with ranks; the page changes one component at a time. */
  #fixed(): Fixed {
    for (const option of this.#options) {
      const found = fixedBy(option);
      if (found) return found;
    }
    return { ranks: [], component: "" };
  }

  #fix(next: Fixed): void {
    const before = this.#fixed();
    const others = this.#options.filter((option) => option !== fixOption(before));
    this.#change(next.ranks.length === 0 ? others : [...others, fixOption(next)]);
  }

  #rankSwitches(offers: Answer["offers"]): Child {
    const comparable = new Set(numbersIn(offers.ranks));
    if (comparable.size < 2) return null;
    const fixed = this.#fixed();
    const offered = [...new Set([...(this.#latest?.ranks ?? []), ...fixed.ranks])].filter((rank) => comparable.has(rank)).sort((a, b) => a - b);
    const late = new Set(this.#context.payload.diagnosis?.stragglers.ranks ?? []);
    const chips = offered.map((rank) => {
      const on = fixed.ranks.includes(rank);
      return button({ class: `chip${late.has(rank) ? " late" : ""}`, id: `whatif-rank-${rank}`, "aria-pressed": String(on), "data-testid": `whatif-rank-${rank}`, title: late.has(rank) ? `Rank ${rank} delays the others` : `Rank ${rank} like its peers` },
        () => this.#fix({ ...fixed, ranks: on ? fixed.ranks.filter((each) => each !== rank) : [...fixed.ranks, rank] }), String(rank));
    });
    const field = h("input", { id: "whatif-ranks", "data-testid": "whatif-ranks", type: "text", value: fixed.ranks.join(","), placeholder: "1,4-7", autocomplete: "off", spellcheck: "false", change: () => this.#fix({ ...fixed, ranks: numbersIn(field.value) }) });
    const components = [{ value: "", label: "everything" }, ...offers.components.map((component) => ({ value: component, label: factLabel(component).toLowerCase() }))];
    return h("fieldset", {}, h("legend", {}, "Ranks like their peers"),
      h("div", { class: "chips" }, chips, comparable.size > offered.length ? h("label", { class: "field", for: "whatif-ranks" }, h("span", {}, "or"), field) : null),
      selector("whatif-component", "in", components, fixed.component, (component) => this.#fix({ ...fixed, component })));
  }

  /** Everything that is on or off, and the network's speed. */
  #others(offers: Answer["offers"]): Child {
    const network = this.#options.map((option) => NETWORK.exec(option)?.[1]).find((factor) => factor !== undefined) ?? "";
    const without = (test: (option: string) => boolean): string[] => this.#options.filter((option) => !test(option));
    const speeds = [...new Set([...NETWORKS, network])].map((factor) => ({ value: factor, label: factor === "" ? "as recorded" : `${factor}× as fast` }));
    const toggle = ({ option, name }: Scenario): HTMLElement => {
      const box = h("input", { type: "checkbox", id: idOf(option), checked: this.#options.includes(option), "data-option": option, change: () => this.#change(box.checked ? [...this.#options, option] : without((each) => each === option)) });
      return h("label", { class: "toggle", for: idOf(option) }, box, named(name.charAt(0).toUpperCase() + name.slice(1), 90));
    };
    const groups = offers.scenarios.filter(({ option }) => option.startsWith("--fix "));
    const toggles = offers.scenarios.filter((each) => !NETWORK.test(each.option) && !groups.includes(each)).map(toggle);
    return h("fieldset", {}, h("legend", {}, isLive(this.#context.served) ? "All ranks" : "All ranks, one at a time"),
      offers.scenarios.some(({ option }) => NETWORK.test(option)) ? selector("whatif-network", "Network", speeds, network, (factor) => this.#change([...without((each) => NETWORK.test(each)), ...(factor === "" ? [] : [`--network ${factor}x`])])) : null,
      h("div", { class: "toggles" }, toggles),
      groups.length > 0 && h("details", { class: "notes", open: groups.some(({ option }) => this.#options.includes(option)) }, h("summary", {}, `Networks of single groups (${groups.length})`), h("div", { class: "toggles" }, groups.map(toggle))));
  }
}

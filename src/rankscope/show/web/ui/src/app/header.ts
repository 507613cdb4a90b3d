/** One line: the list of views, which run it is, its facts, how far the server is, and the choice of colors. */
import { button, copyButton, selector } from "../components/controls.ts";
import { h, named, type Child } from "../components/dom.ts";
import type { Payload } from "../data/payload.ts";
import type { Source } from "../data/source.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import { shownName } from "../format/text.ts";
import { currentTheme, setTheme, type Theme } from "../theme/theme.ts";
import { formatHash, parseHash } from "./router.ts";

export function header(payload: Payload, runName: string, served: Source | null, menu: HTMLElement): HTMLElement {
  const { run } = payload;
  const devices = [...new Set(run.devices)];
  const ranks = run.world_size !== null && run.world_size !== run.ranks.length ? `${run.ranks.length} of ${run.world_size}` : String(run.ranks.length);
  const fact = (name: string, value: Child, id: string): HTMLElement => h("div", { "data-testid": `run-${id}` }, h("dt", {}, name), h("dd", {}, value));
  return h("header", { class: "top" },
    menu, h("p", { class: "product" }, "rankscope"), h("h1", { "data-testid": "run-name" }, named(runName, 80)),
    h("dl", { class: "run" }, // what does not fit in the line is left to the Run view; what is missing comes first
      run.missing_ranks.length > 0 && h("div", { class: "missing-ranks", "data-testid": "run-missing" }, h("dt", {}, "Missing"), h("dd", {}, `${counted(run.missing_ranks.length, "rank")}: ${formatRanks(run.missing_ranks, 4)}`)),
      fact("Ranks", ranks, "ranks"),
      fact("Steps", run.steps.length === 0 ? "none marked" : formatRanks(run.steps, 4), "steps"),
      fact("Hosts", few([...new Set(run.hosts)], ""), "hosts"),
      fact("Devices", few(devices, "device types"), "devices")),
    served && served.working ? progress(served) : null, served && runChooser(served), copyButton({ class: "quiet copy", "data-testid": "copy-link", title: "Copy a link to what is shown: the view, its choices, the selection" }, "Copy link", "Copy it from the address bar", () => location.href), themeButton());
}

function progress(served: Source): HTMLElement {
  const { done, total } = served.state;
  return h("div", { class: "progress", role: "status", "data-testid": "progress" },
    h("progress", total > 0 ? { value: done, max: total, "aria-label": "Server progress" } : { "aria-label": "The server is working" }),
    h("span", {}, `${phaseText(served)}${total > 0 ? ` (${done} of ${total})` : ""}`));
}

/** What the server is doing, in words. */
export function phaseText(served: Source): string {
  const { phase, what } = served.state;
  const words = { reading: "Reading the traces", analyzing: "Comparing the ranks", drawing: "Building the timeline" }[phase] ?? "Working";
  return `${words} …${what === "" ? "" : ` ${shownName(what, 120)}`}`;
}

function runChooser(served: Source): HTMLElement | null {
  const shown = served.api.run ?? served.shown;
  if (served.runs.length < (served.runs.some(({ key }) => key === shown) ? 2 : 1)) return null;
  const none = served.runs.some(({ key }) => key === shown) ? [] : [{ value: shown, label: "Choose a run …" }];
  return selector("run", "Run", [...none, ...served.runs.map(({ key, name, ranks }) => ({ value: key, label: `${shownName(name, 60)}${ranks === null || name === counted(ranks, "rank") ? "" : ` (${counted(ranks, "rank")})`}` }))], shown,
    (run) => { location.hash = formatHash(parseHash(location.hash).view || "overview", new Map([["run", run]])); });
}

/** Up to two names as they are; more are counted (the Run view lists them). */
function few(names: readonly string[], noun: string): Child {
  if (names.length === 0) return "not recorded";
  if (names.length > 2) return `${names.length} ${noun}`.trim();
  return names.map((name, index) => [index > 0 && ", ", named(name, 48)]);
}

const THEMES: Readonly<Record<Theme, { label: string; next: Theme }>> = {
  system: { label: "System", next: "light" }, light: { label: "Light", next: "dark" }, dark: { label: "Dark", next: "system" },
};

function themeButton(): HTMLElement {
  const toggle = button({ class: "quiet theme", "data-testid": "theme" }, () => {
    setTheme(THEMES[currentTheme()].next);
    write();
  });
  const write = (): void => toggle.replaceChildren(h("span", { class: "theme-word" }, "Theme: "), THEMES[currentTheme()].label);
  write();
  return toggle;
}

/** The frame around every view: the run's facts above, the views to choose from beside, one view in the middle. */
import { button } from "../components/controls.ts";
import { append, h, named, type Child } from "../components/dom.ts";
import { emptyState } from "../components/notes.ts";
import type { Payload } from "../data/payload.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import { baseName, shownName } from "../format/text.ts";
import { currentTheme, setTheme, type Theme } from "../theme/theme.ts";
import { viewsOf } from "../views/registry.ts";
import { tablesOf, type View } from "../views/view.ts";
import { Router, type Place } from "./router.ts";

export function showPage(root: HTMLElement, payload: Payload): void {
  const { own, more } = viewsOf(payload);
  const views = [...own, ...more];
  const table = tablesOf(payload);
  const router = new Router(show);
  const runName = payload.run.name ?? (baseName(payload.run.path) || payload.run.id || "unnamed run");
  let leaving: (() => void)[] = [];
  let current = "";

  const main = h("main", { id: "main", tabindex: "-1" });
  const links = new Map(views.map((view) => [view.id, h("a", { href: router.href(view.id), "data-testid": `nav-${view.id}` }, named(view.title, 60))]));
  const here = h("span", { class: "here" });
  const open = button({ class: "menu", "aria-expanded": "false", "aria-controls": "views" }, () => menu(open.getAttribute("aria-expanded") !== "true"), "View: ", here);
  const menu = (shown: boolean): void => {
    open.setAttribute("aria-expanded", String(shown));
    nav.classList.toggle("open", shown);
  };
  const group = (members: readonly View[]): HTMLElement => h("ul", {}, members.map((view) => h("li", {}, links.get(view.id))));
  const nav = h("nav", { "aria-label": "Views" }, open,
    h("div", { id: "views", class: "views" }, group(own), more.length > 0 && [h("h2", { class: "nav-title" }, "More tables"), group(more)]));

  nav.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || open.getAttribute("aria-expanded") !== "true") return;
    menu(false);
    open.focus();
  });

  function show(place: Place): void {
    for (const done of leaving) done();
    leaving = [];
    const view = views.find((each) => each.id === (place.view || "overview"));
    const id = view?.id ?? "?";
    const focused = document.activeElement?.id ?? "";
    const title = h("h2", { id: "view-title", tabindex: "-1" }, view ? named(view.title, 120) : "No such view");
    const content: Child = view
      ? view.render({ payload, place, router, table, onLeave: (done) => leaving.push(done) })
      : emptyState("The link names a view that this report does not have.", "Choose one from the list; the report may hold fewer analyses than the one the link was made for.");
    const body = h("article", { "aria-labelledby": "view-title" },
      h("div", { class: "view-head" }, title, view && view.question !== "" && h("p", { class: "question" }, view.question)));
    append(body, [content]);
    main.replaceChildren(...problems(payload), body);
    for (const [name, link] of links) {
      if (name === id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    here.textContent = shownName(view?.title ?? "none", 40);
    document.title = `${shownName(view?.title ?? "No such view", 60)} · ${shownName(runName, 80)} · rankscope`;
    menu(false);
    if (current !== "" && current !== id) {
      scrollTo(0, 0);
      title.focus({ preventScroll: true });
    } else if (focused !== "") document.getElementById(focused)?.focus({ preventScroll: true });
    current = id;
  }

  root.replaceChildren(
    h("a", { class: "skip", href: "#main", click: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"),
    header(payload, runName), h("div", { class: "frame" }, nav, main),
    h("footer", {}, `Written by ${shownName(payload.generatedBy, 60)}${payload.generatedAt ? `, ${shownName(payload.generatedAt, 40).replace("T", " ").replace("+00:00", " UTC")}` : ""}. This page holds all of its data and sends nothing.`));
  show(router.place());
}

function header(payload: Payload, runName: string): HTMLElement {
  const { run } = payload;
  const devices = [...new Set(run.devices)];
  const ranks = run.world_size !== null && run.world_size !== run.ranks.length ? `${run.ranks.length} of ${run.world_size}` : String(run.ranks.length);
  const fact = (name: string, value: Child, id: string): HTMLElement => h("div", { "data-testid": `run-${id}` }, h("dt", {}, name), h("dd", {}, value));
  return h("header", { class: "top" },
    h("div", { class: "brand" }, h("p", { class: "product" }, "rankscope"), h("h1", { "data-testid": "run-name" }, named(runName, 80)), themeButton()),
    h("dl", { class: "run" },
      fact("Ranks", ranks, "ranks"),
      run.missing_ranks.length > 0 && h("div", { class: "missing-ranks", "data-testid": "run-missing" }, h("dt", {}, "Missing"), h("dd", {}, `${counted(run.missing_ranks.length, "rank")}: ${formatRanks(run.missing_ranks, 4)}`)),
      fact("Steps", run.steps.length === 0 ? "none marked" : formatRanks(run.steps, 4), "steps"),
      fact("Hosts", few([...new Set(run.hosts)], ""), "hosts"),
      fact("Devices", few(devices, "kinds of device"), "devices")));
}

/** Up to two names as they are; more are counted (the Run view lists them). */
function few(names: readonly string[], noun: string): Child {
  if (names.length === 0) return "not recorded";
  if (names.length > 2) return `${names.length} ${noun}`.trim();
  return names.map((name, index) => [index > 0 && ", ", named(name, 48)]);
}

function problems(payload: Payload): HTMLElement[] {
  if (payload.problems.length === 0) return [];
  return [h("div", { class: "state error", role: "alert", "data-testid": "problems" }, h("p", { class: "state-title" }, "Not all of this report’s data can be shown."),
    h("ul", {}, payload.problems.slice(0, 20).map((problem) => h("li", {}, named(problem, 300)))))];
}

const THEMES: Readonly<Record<Theme, { label: string; next: Theme }>> = {
  system: { label: "System", next: "light" }, light: { label: "Light", next: "dark" }, dark: { label: "Dark", next: "system" },
};

function themeButton(): HTMLElement {
  const toggle = button({ class: "quiet theme", "data-testid": "theme" }, () => {
    setTheme(THEMES[currentTheme()].next);
    write();
  });
  const write = (): void => { toggle.textContent = `Colours: ${THEMES[currentTheme()].label}`; };
  write();
  return toggle;
}

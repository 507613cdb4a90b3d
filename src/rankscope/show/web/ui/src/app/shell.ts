/** The frame around every view: the run's facts at the top, the list of views at the side, one view in the middle. */
import { answer } from "../components/answer.ts";
import { button } from "../components/controls.ts";
import { append, h, named, type Child } from "../components/dom.ts";
import { emptyState, errorState, workingState } from "../components/notes.ts";
import type { RunChoice } from "../data/api.ts";
import type { Payload } from "../data/payload.ts";
import type { Source } from "../data/source.ts";
import { baseName, shownName } from "../format/text.ts";
import { GROUPS, homeOf, viewOf, viewsOf } from "../views/registry.ts";
import { tablesOf, type Group, type View } from "../views/view.ts";
import { header, phaseText } from "./header.ts";
import { Router, type Place } from "./router.ts";

/** Where the list of views is beside the content, as in page.css. */
const LIST_BESIDE = "(min-width: 960px)";
const LIST_KEY = "rankscope.views";
/** What the server does while its run has no trace yet. */
const WAITING = "waiting for the first trace";

/** Whether the list beside the content is to be shown; the choice is kept where the browser lets it be. */
function listKept(): boolean {
  try {
    return localStorage.getItem(LIST_KEY) !== "hidden";
  } catch {
    return true;
  }
}

function keepList(shown: boolean): void {
  try {
    if (shown) localStorage.removeItem(LIST_KEY);
    else localStorage.setItem(LIST_KEY, "hidden");
  } catch {
    // Storage may be forbidden for a local file; the choice then lasts as long as the page.
  }
}

export function showPage(root: HTMLElement, opened: Payload, served: Source | null): void {
  const payloadNow = (): Payload => served?.payload ?? opened;
  const table = tablesOf(opened);
  const router = new Router((place) => (moving && place.view === current ? moving(place) : show(place)));
  let views: readonly View[] = [];
  /** What the list of views was made of. */
  let listed = "";
  let links = new Map<string, HTMLElement>();
  let leaving: (() => void)[] = [];
  let moving: ((place: Place) => void) | null = null;
  let current = "";
  /** The data that the current view was drawn from: it is redrawn when more has arrived. */
  let drawnFrom = "";

  const chosen = (): RunChoice | undefined => served?.runs.find(({ key }) => key === (served.api.run ?? served.shown));
  const runName = (): string => {
    const { run } = payloadNow();
    const beside = served !== null && served.runs.length > 1 ? chosen() : undefined;
    if (served && beside && beside.name !== "") return `${served.place}: ${beside.name}`;
    return run.name ?? (baseName(run.path) || run.id || (served?.working ? "…" : "unnamed run"));
  };
  let waits = false;
  /** What is shown where the address names no view; of a watched job without traces its state, also once there is one. */
  const home = (): string => {
    waits ||= served?.state.watched === true && served.state.what === WAITING;
    return served?.study ? "scaling" : waits ? "watch" : "overview";
  };
  /** The first run goes into the address once its key is known, so that the link stays valid when runs are added. */
  const stay = (): void => {
    const run = served?.live ? chosen() : undefined;
    if (run && run.ranks !== null && run.key === served?.shown) router.stay(home(), run.key);
  };
  const main = h("main", { id: "main", tabindex: "-1" });
  const here = h("span", { class: "here" });
  const open = button({ class: "menu", "aria-controls": "views", "data-testid": "menu" }, () => menu(!listShown()), h("span", { class: "bars", "aria-hidden": "true" }, "☰"), h("span", { class: "menu-words" }, "View: ", here));
  const listShown = (): boolean => open.getAttribute("aria-expanded") === "true";
  /** Beside the content the list stays as the reader left it, in every view; over it, it closes after a choice. */
  const menu = (shown: boolean): void => {
    open.setAttribute("aria-expanded", String(shown));
    nav.classList.toggle("open", shown);
    if (beside.matches) keepList(shown);
  };
  const list = h("div", { id: "views", class: "views" });
  const nav = h("nav", { "aria-label": "Views" }, list);
  const beside = matchMedia(LIST_BESIDE);
  const fit = (): void => menu(beside.matches && listKept());
  beside.addEventListener("change", fit);
  const top = h("div", { class: "top-place" });
  const foot = h("footer");
  const broad = h("div", { class: "frame" }, nav, main);

  nav.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || beside.matches || !listShown()) return;
    menu(false);
    open.focus();
  });

  function listViews(): void {
    const next = viewsOf(payloadNow(), served !== null, served?.state.watched === true);
    const now = [router.href(""), ...next.map(({ id }) => id)].join();
    if (now === listed) return;
    listed = now;
    views = next;
    links = new Map(views.map((view) => [view.id, h("a", { href: router.href(view.id), "data-testid": `nav-${view.id}` }, named(view.title, 60))]));
    list.replaceChildren(...(Object.entries(GROUPS) as [Group, string][]).flatMap(([group, title]) => {
      const members = views.filter((view) => view.group === group);
      return members.length === 0 ? [] : [h("div", {}, h("h2", { class: "nav-title", id: `group-${group}` }, title), h("ul", { "aria-labelledby": `group-${group}` }, members.map((view) => h("li", {}, links.get(view.id)))))];
    }));
  }

  function frame(): void {
    top.replaceChildren(header(payloadNow(), runName(), served, open));
    if (served) root.dataset["phase"] = served.state.phase;
    const { generatedBy, generatedAt } = payloadNow();
    foot.textContent = served?.live ? `Served by ${shownName(generatedBy, 60)} on this machine only; no data leaves it.${served.state.following ? " New traces in its directory are picked up automatically." : ""}`
      : `Generated by ${shownName(generatedBy, 60)}${generatedAt ? `, ${shownName(generatedAt, 40).replace("T", " ").replace("+00:00", " UTC")}` : ""}. This page is self-contained and sends no data.`;
  }

  /** What the view needs and does not have: null where it can be drawn, else what to show meanwhile. */
  function missing(view: View, place: Place): Node | null {
    if (!served) return null;
    const { state } = served;
    if (state.phase === "failed") return errorState(state.error?.what ?? "The run could not be read.", state.error?.hint ?? "See the terminal of `rankscope serve` for details.");
    const { analyses } = served.payload;
    const away = [...view.shows, ...(view.wants ?? [])].filter((name) => analyses.get(name)?.away?.state === "ready");
    if (away.length > 0) {
      void Promise.all(away.map((name) => served.table(name))).then(() => {
        if (router.place().view === place.view || (router.place().view === "" && view.id === home())) show(router.place());
      }, (error: unknown) => {
        const [what, hint] = error instanceof Error ? [error.message, "hint" in error ? String(error.hint) : "Reload the page."] : ["The table could not be fetched.", "Reload the page."];
        main.replaceChildren(errorState(what, hint));
      });
      return workingState("Loading data …", null);
    }
    const pending = view.shows.filter((name) => analyses.get(name)?.away?.state === "pending");
    const waits = pending.length > 0 || (served.working && view.shows.some((name) => !analyses.has(name))) || (view.id === "timeline" && !served.isReady("timeline"));
    return waits ? workingState(phaseText(served), served.state) : null;
  }

  function show(place: Place): void {
    stay();
    for (const done of leaving) done();
    leaving = [];
    moving = null;
    const view = viewOf(payloadNow(), views, place.view || home());
    const id = view?.id ?? "?";
    const focused = document.activeElement?.id ?? "";
    const title = h("h2", { id: "view-title", tabindex: "-1" }, view ? named(view.title, 120) : "No such view");
    drawnFrom = fingerprint(view);
    const waiting = view && missing(view, place);
    const content: Child = waiting ?? (view
      ? view.render({ payload: payloadNow(), place, router, table, homeOf, served, onLeave: (done) => leaving.push(done), onPlace: (move) => { moving = move; } })
      : place.view === "watch" ? emptyState("This run is not watched.", "Record it with `rankscope run --watch`, and the view shows how the job is doing while it runs.")
      : emptyState(`This ${served?.live ? "run" : "report"} has no such view.`, "Choose one from the list. The link may come from a run with more analyses."));
    const body = h("article", { "aria-labelledby": "view-title", class: `view-${view?.id === "timeline" ? "timeline" : "page"}` },
      h("div", { class: "view-head" }, title, view && view.question !== "" && h("p", { class: "question" }, view.question)), view && answersOf(view));
    append(body, [content]);
    main.replaceChildren(...problems(payloadNow()), body);
    for (const [name, link] of links) {
      if (name === id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    here.textContent = shownName(view?.title ?? "none", 40);
    document.title = `${shownName(view?.title ?? "No such view", 60)} · ${shownName(runName(), 80)} · rankscope`;
    root.classList.toggle("picture", view?.id === "timeline"); // which takes all of the window
    if (!beside.matches) menu(false);
    if (current !== "" && current !== id) {
      scrollTo(0, 0);
      title.focus({ preventScroll: true });
    } else if (focused !== "") document.getElementById(focused)?.focus({ preventScroll: true });
    current = id;
  }

  /** The view's first line: the diagnosis on the overview, else the answer of the first of the view's analyses that has one. */
  function answersOf(view: View): HTMLElement[] {
    const { analyses, diagnosis } = payloadNow();
    if (view.id === "overview" && diagnosis) return [answer("diagnosis", diagnosis.headline)];
    for (const name of view.answers ?? []) {
      const headline = analyses.get(name)?.headline;
      if (headline) return [answer(name, headline)];
    }
    return [];
  }

  /** Changes where the view would be drawn from other data than it was. */
  function fingerprint(view: View | undefined): string {
    if (!served || !view) return "";
    const states = [...view.shows, ...(view.wants ?? [])].map((name) => served.payload.analyses.get(name)?.away?.state ?? "here");
    return [view.id, served.state.phase === "failed", ...states, ...(view.id === "timeline" ? [served.isReady("timeline")] : [served.generation, served.payload.findings.length, served.payload.diagnosis !== null, served.isReady("heat")])].join();
  }

  served?.onChange(() => {
    stay();
    listViews();
    frame();
    const view = viewOf(payloadNow(), views, router.place().view || home());
    const progress = main.querySelector("[data-testid=working]");
    if (fingerprint(view) !== drawnFrom) show(router.place());
    else if (progress && served.working) progress.replaceWith(workingState(phaseText(served), served.state));
  });

  stay();
  listViews();
  fit();
  frame();
  root.replaceChildren(
    h("a", { class: "skip", href: "#main", click: (event) => { event.preventDefault(); main.focus(); } }, "Skip to content"),
    top, broad, foot);
  show(router.place());
}

function problems(payload: Payload): HTMLElement[] {
  if (payload.problems.length === 0) return [];
  return [h("div", { class: "state error", role: "alert", "data-testid": "problems" }, h("p", { class: "state-title" }, "Some of this report’s data cannot be shown."),
    h("ul", {}, payload.problems.slice(0, 20).map((problem) => h("li", {}, named(problem, 300)))))];
}

/** One step of both sides of a diff, one below the other on one scale: the lanes of a rank, from its step's start. */
import { fitted, FONT } from "../charts/font.ts";
import { button, selector } from "../components/controls.ts";
import { h, named, styled } from "../components/dom.ts";
import { emptyState, workingState } from "../components/notes.ts";
import { ServerApi, type Api } from "../data/api.ts";
import { labelName } from "../format/short_name.ts";
import { shownName } from "../format/text.ts";
import { formatDuration } from "../format/units.ts";
import { categoryVariable } from "../theme/categories.ts";
import { color, onThemeChange } from "../theme/theme.ts";
import { readLayout, type Layout, type RankRow, type Step } from "../timeline/layout.ts";
import { Names } from "../timeline/names.ts";
import type { ViewContext } from "./view.ts";

/** What is compared: a run by its key, and the name of the parameter that chooses its rank. */
export interface DiffSide {
  readonly name: string;
  readonly run: string | null;
  /** The only rank to show; null where the reader chooses. */
  readonly rank: number | null;
}

interface Events { readonly lane: Uint32Array; readonly start: Float64Array; readonly end: Float64Array; readonly name: Uint32Array; readonly category: Uint8Array; readonly more: boolean }

interface Loaded { readonly side: DiffSide; readonly api: Api; readonly layout: Layout; readonly names: Names; readonly rank: RankRow; readonly step: Step; readonly lanes: readonly number[]; readonly events: Events }

const LANE_PX = 17;
const LANES_AT_MOST = 14;
const HOST_LANES = 4;
const EVENTS_AT_MOST = 60_000;
const WIDEST_STRIP = 12;
/** The parameters that choose a step of each side by its order, from 1, where they are not to have the same number. */
const OWN_STEP = ["stepa", "stepb"] as const;

export interface DiffTimeline {
  readonly element: HTMLElement;
  /** Shows events of one name, the others faint; null for all. */
  highlight(name: string | null): void;
}

export function diffTimeline(context: ViewContext, sides: readonly [DiffSide, DiffSide]): DiffTimeline {
  const place = h("div", {}, workingState("Loading a step of both …", null));
  const element = h("section", { "aria-labelledby": "diff-timeline-title", "data-testid": "diff-timeline" }, h("h3", { id: "diff-timeline-title" }, "One step side by side"), place);
  let chosen: string | null = context.place.params.get("name") ?? null;
  let redraw: () => void = () => undefined;
  let left = false;
  context.onLeave(() => { left = true; });
  Promise.all(sides.map((side, index) => load(context, side, OWN_STEP[index]!))).then((found) => {
    if (left) return;
    const [a, b] = found;
    if (!a || !b) place.replaceChildren(emptyState("No step of both sides can be drawn.", "Steps have to be recorded on both sides: call `.step()` once per iteration."));
    else place.replaceChildren(...pictures(context, [a, b], () => chosen, (draw) => { redraw = draw; }));
  }, (error: unknown) => { if (!left) place.replaceChildren(emptyState("The steps cannot be drawn.", error instanceof Error ? error.message : "Reload the page.")); });
  return { element, highlight: (name) => { chosen = name; context.router.note({ name: name ?? "" }); redraw(); } };
}

/** A side's rank, its step of the address (by its own order, else by number, else the one in the middle), and that step's events; null without steps. */
async function load(context: ViewContext, side: DiffSide, own: string): Promise<Loaded | null> {
  const api = new ServerApi(side.run);
  const layout = readLayout(await api.json("timeline"));
  const { params } = context.place;
  const stepped = layout.ranks.filter(({ steps }) => steps.length > 0);
  const rank = stepped.find((row) => row.rank === (side.rank ?? Number(params.get("diffrank") ?? stepped[0]?.rank))) ?? stepped[0];
  const step = rank?.steps[Number(params.get(own) ?? 0) - 1] ?? rank?.steps.find((each) => String(each.step) === params.get("step")) ?? rank?.steps[Math.floor(rank.steps.length / 2)];
  if (!rank || !step) return null;
  const lanes = lanesOf(layout, rank.rank);
  const names = new Names();
  const [file] = await Promise.all([api.columns("events", { lanes: [...lanes].sort((x, y) => x - y).join(","), from: Math.floor(step.start), to: Math.ceil(step.end), limit: EVENTS_AT_MOST }), names.load(api, () => undefined)]);
  const sorted = [...lanes].sort((x, y) => x - y);
  const row = sorted.map((lane) => lanes.indexOf(lane)); // the file counts lanes as they were asked for
  return { side, api, layout, names, rank, step, lanes, events: { lane: file.u32("lane").map((index) => row[index] ?? 0), start: file.f64("start_ns"), end: file.f64("end_ns"), name: file.u32("name"), category: file.u8("category"), more: file.meta["more"] === true } };
}

/** Streams, then the first depths of the thread with the most events. */
function lanesOf(layout: Layout, rank: number): number[] {
  const of = (kind: string): number[][] => layout.tracks.filter((track) => track.rank === rank && track.kind === kind && track.lanes > 0).map((track) => Array.from({ length: track.lanes }, (_, depth) => track.firstLane + depth));
  const count = (lanes: readonly number[]): number => lanes.reduce((sum, lane) => sum + (layout.laneEvents[lane] ?? 0), 0);
  const host = of("thread").sort((x, y) => count(y) - count(x))[0] ?? [];
  return [...of("stream").flat().slice(0, LANES_AT_MOST - HOST_LANES), ...host.slice(0, HOST_LANES)];
}

function pictures(context: ViewContext, sides: readonly [Loaded, Loaded], chosen: () => string | null, drawn: (draw: () => void) => void): HTMLElement[] {
  const whole = Math.max(...sides.map(({ step }) => step.end - step.start)) * 1.02;
  let [from, to] = [0, whole];
  const scale = h("p", { class: "quiet-line" });
  const words = h("p", { class: "heat-readout", role: "status", "data-testid": "diff-timeline-readout" });
  const canvases = sides.map((side) => h("canvas", { tabindex: "0", role: "img", class: "diff-strip", "data-testid": `diff-strip-${side === sides[0] ? "a" : "b"}`,
    "aria-label": `${side.side.name}${side.side.rank === null ? `, rank ${side.rank.rank}` : ""}, step ${side.step.step ?? "without number"}: ${formatDuration(side.step.end - side.step.start)}. Arrow keys move, plus and minus zoom, Enter opens the timeline.` }));
  const draw = (): void => {
    sides.forEach((side, index) => paint(canvases[index]!, side, from, to, chosen()));
    scale.textContent = `${formatDuration(from)} to ${formatDuration(to)} from the step’s start, on one scale: streams, below them the busiest host thread. Ctrl + wheel zooms, a double-click opens the timeline.`;
  };
  const move = (center: number, size: number): void => {
    const length = Math.min(whole, Math.max(1000, size));
    from = Math.min(Math.max(0, center - length / 2), whole - length);
    to = from + length;
    draw();
  };
  const open = (index: number, event: number | null): void => {
    const { side, rank, step, events } = sides[index]!;
    const run = side.run === null ? {} : { run: side.run };
    const at = event === null ? {} : { ev: `${rank.rank}_${events.start[event]}_${events.end[event]}` };
    location.hash = context.router.href("timeline", { ...run, t: `${Math.floor(step.start + from)}_${Math.ceil(step.start + to)}`, open: String(rank.rank), pin: String(rank.rank), ...at });
  };
  canvases.forEach((canvas, index) => {
    const under = (event: MouseEvent): number => hit(sides[index]!, from + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (to - from), Math.floor((event.clientY - canvas.getBoundingClientRect().top) / LANE_PX));
    let drag: number | null = null;
    canvas.addEventListener("pointermove", (event) => {
      if (drag !== null && event.buttons === 1) move((from + to) / 2 - ((event.clientX - drag) / canvas.clientWidth) * (to - from), to - from);
      drag = event.buttons === 1 ? event.clientX : null;
      const found = under(event);
      const { events, names, side } = sides[index]!;
      words.textContent = found < 0 ? "" : `${side.name}: ${shownName(names.get(events.name[found]!) ?? "…", 160)}, ${formatDuration(events.end[found]! - events.start[found]!)}, at ${formatDuration(events.start[found]! - sides[index]!.step.start)} of the step`;
    });
    canvas.addEventListener("dblclick", (event) => open(index, under(event) < 0 ? null : under(event)));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const at = from + (event.offsetX / canvas.clientWidth) * (to - from);
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      move(at + ((from + to) / 2 - at) * factor, (to - from) * factor);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const [center, size] = [(from + to) / 2, to - from];
      if (event.key === "ArrowLeft") move(center - size / 5, size);
      else if (event.key === "ArrowRight") move(center + size / 5, size);
      else if (event.key === "+" || event.key === "=") move(center, size / 1.5);
      else if (event.key === "-") move(center, size * 1.5);
      else if (event.key === "Enter") open(index, null);
      else return;
      event.preventDefault();
    });
  });
  const box = h("div", { class: "figure" }, sides.map((side, index) => h("div", {}, h("p", { class: "diff-strip-name" }, named(side.side.name, 60), side.side.rank === null ? ` · rank ${side.rank.rank}` : "", `, step ${side.step.step ?? "–"} · `, h("strong", {}, formatDuration(side.step.end - side.step.start)), side.events.more ? " · only the first events are drawn" : "", " ",
    button({ class: "link", "data-testid": `diff-open-${index === 0 ? "a" : "b"}` }, () => open(index, null), "Open in the timeline")), canvases[index])), scale, words);
  const watch = new ResizeObserver(draw);
  watch.observe(box);
  const stop = onThemeChange(draw);
  context.onLeave(() => { watch.disconnect(); stop(); });
  drawn(draw);
  return [controls(context, sides, (factor) => move((from + to) / 2, (to - from) * factor)), box];
}

function controls(context: ViewContext, sides: readonly [Loaded, Loaded], zoom: (factor: number) => void): HTMLElement {
  const [a] = sides;
  const ranks = a.side.rank === null ? a.layout.ranks.filter(({ rank }) => sides[1].layout.ranks.some((each) => each.rank === rank)) : [];
  return h("div", { class: "controls" },
    steps(context, sides),
    ranks.length > 1 && selector("diff-rank", "Rank", ranks.map(({ rank }) => ({ value: String(rank), label: String(rank) })), String(a.rank.rank), (rank) => context.router.update({ diffrank: rank })),
    h("span", {}, button({ class: "quiet", "aria-label": "Zoom in" }, () => zoom(1 / 1.5), "+"), " ", button({ class: "quiet", "aria-label": "Zoom out" }, () => zoom(1.5), "−"), " ", button({ class: "quiet" }, () => zoom(1e9), "Entire step")));
}

const APART = "apart";

/** One step of both by its number, or one of each by its order: runs may have no number in common, or the steps in question other numbers. */
function steps(context: ViewContext, sides: readonly [Loaded, Loaded]): (HTMLElement | false)[] {
  const [a, b] = sides;
  const { router, place: { params } } = context;
  const common = a.rank.steps.filter(({ step }) => step !== null && b.rank.steps.some((each) => each.step === step));
  const order = ({ rank, step }: Loaded): string => String(rank.steps.indexOf(step) + 1);
  const several = sides.some(({ rank }) => rank.steps.length > 1);
  if (common.length > 0 && !OWN_STEP.some((name) => params.has(name))) {
    const options = common.map(({ step }) => ({ value: String(step), label: String(step) }));
    return [several && selector("diff-step", "Step", [...options, { value: APART, label: "one of each …" }], String(a.step.step),
      (step) => router.update(step === APART ? { step: "", stepa: order(a), stepb: order(b) } : { step }))];
  }
  const choose = (side: Loaded, name: string): HTMLElement | false => side.rank.steps.length > 1 && selector(`diff-${name}`, `Step of ${shownName(side.side.name, 30)}`,
    side.rank.steps.map(({ step, start, end }, index) => ({ value: String(index + 1), label: `${index + 1} of ${side.rank.steps.length}: ${step === null ? "no number" : `step ${step}`}, ${formatDuration(end - start)}` })), order(side), (value) => router.update({ step: "", [name]: value }));
  return [choose(a, OWN_STEP[0]), choose(b, OWN_STEP[1]),
    common.length > 0 ? h("span", {}, button({ class: "quiet", "data-testid": "diff-same-step" }, () => router.update({ stepa: "", stepb: "" }), "Same step of both")) : h("p", { class: "quiet-line" }, "No step number is in both.")];
}

/** The event at an instant of the step in a lane; −1 for none. */
function hit({ events, step }: Loaded, at: number, lane: number): number {
  for (let i = 0; i < events.start.length; i++) if (events.lane[i] === lane && events.start[i]! - step.start <= at && events.end[i]! - step.start >= at) return i;
  return -1;
}

function paint(canvas: HTMLCanvasElement, { events, step, lanes, layout, names }: Loaded, from: number, to: number, chosen: string | null): void {
  const width = canvas.parentElement?.clientWidth ?? 0;
  const c = canvas.getContext("2d");
  if (!c || width === 0) return;
  const [height, ratio] = [Math.max(1, lanes.length) * LANE_PX, Math.min(2, devicePixelRatio || 1)];
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  styled(canvas, { width: `${width}px`, height: `${height}px` });
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.font = `11px ${FONT}`;
  c.textBaseline = "middle";
  const x = (time: number): number => ((time - step.start - from) / (to - from)) * width;
  const colors = layout.categories.map(({ category }) => color(categoryVariable(category)));
  const [ink, line, page] = [color("--text"), color("--line-strong"), color("--surface")];
  c.fillStyle = color("--raised");
  c.fillRect(x(step.start), 0, x(step.end) - x(step.start), height);
  for (let i = 0; i < events.start.length; i++) {
    const [left, right] = [Math.max(0, x(events.start[i]!)), Math.min(width, x(events.end[i]!))];
    if (right < 0 || left > width) continue;
    const name = names.get(events.name[i]!) ?? "";
    c.globalAlpha = chosen === null || name === chosen ? 1 : 0.18;
    c.fillStyle = colors[events.category[i]!] ?? ink;
    c.fillRect(left, events.lane[i]! * LANE_PX + 1, Math.max(0.6, right - left), LANE_PX - 2);
    if (right - left < WIDEST_STRIP * 2.5) continue;
    const text = fitted(c, labelName(name), right - left - 8);
    if (text.length < 3) continue;
    c.fillStyle = page;
    c.globalAlpha *= 0.78;
    c.fillRect(left + 2, events.lane[i]! * LANE_PX + 3, c.measureText(text).width + 4, LANE_PX - 6);
    c.globalAlpha = chosen === null || name === chosen ? 1 : 0.4;
    c.fillStyle = ink;
    c.fillText(text, left + 4, events.lane[i]! * LANE_PX + LANE_PX / 2);
  }
  c.globalAlpha = 1;
  c.fillStyle = line;
  c.fillRect(x(step.end), 0, 1.5, height);
}

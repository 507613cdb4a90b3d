/** One step as recorded and as replayed, one above the other on one axis: what each rank's host, device and collectives do. */
import { h, styled } from "../components/dom.ts";
import { categoryClass } from "../components/swatch.ts";
import type { Answer, Kind, Lane, Lanes } from "../data/whatif.ts";
import { formatDuration, formatRatio, formatTick } from "../format/units.ts";
import type { Category } from "../theme/categories.ts";

const KINDS: Readonly<Record<Kind, readonly [Category, string]>> = {
  data_loading: ["data_loading", "data loading"], allocation: ["memset", "calls for memory"], host: ["host_op", "host works"], compute: ["compute", "compute"],
  copies: ["memory", "copies"], waiting: ["waiting", "waits for the last rank"], transfer: ["transfer", "transfer"],
};
const LANES: readonly Lane[] = ["host", "device", "collectives"];
/** Hosts and devices that wait are pale: why they do is in the lane of the collectives. */
const PALE: Readonly<Record<string, string>> = { host: "host waits", device: "device waits" };
const TICKS = 6;

export interface StepLanesSpec {
  readonly answer: Answer;
  /** Ranks whose lanes are marked. */
  readonly marked: ReadonlySet<number>;
  /** What is different in the second picture. */
  readonly title: string;
}

export function stepLanes({ answer, marked, title }: StepLanesSpec): HTMLElement {
  const { recorded, replayed, ranks } = answer;
  const scale = Math.max(recorded.duration_ns, replayed?.duration_ns ?? 0, 1);
  const tip = h("div", { class: "step-tip", "aria-hidden": "true", hidden: true });
  const saved = replayed ? recorded.duration_ns - replayed.duration_ns : 0;
  const lanes = new Set(recorded.lane);
  const panel = (words: string, picture: Lanes, second: boolean): HTMLElement => h("div", { class: "step-panel", "data-testid": second ? "step-replayed" : "step-recorded", "data-value": picture.duration_ns },
    h("p", { class: "step-title" }, h("strong", {}, words), h("span", {}, formatDuration(picture.duration_ns)),
      second && Math.abs(saved) >= scale / 1000 ? h("span", { class: saved > 0 ? "step-saved" : "step-lost" }, `${saved > 0 ? "−" : "+"}${formatDuration(Math.abs(saved), 3)}`) : null),
    h("div", { class: "step-rows", role: "img", "aria-label": described(words, picture, ranks) },
      ranks.map((rank) => row(rank, picture, scale, marked.has(rank), lanes)), end(picture.duration_ns / scale, second ? recorded.duration_ns / scale : 1)));
  const figure = h("div", { class: "step-lanes", "data-testid": "step-lanes" }, panel("As recorded", recorded, false), replayed ? panel(title, replayed, true) : null, axis(scale), tip);
  follow(figure, tip);
  return figure;
}

/** The legend: a color for each kind that the pictures have. */
export function stepLegend(answer: Answer): HTMLElement {
  const both = [answer.recorded, ...(answer.replayed ? [answer.replayed] : [])];
  const has = (kind: Kind, lane: (lane: Lane) => boolean): boolean => both.some((picture) => picture.kind.some((each, index) => each === kind && lane(picture.lane[index]!)));
  const key = (category: Category, words: string): HTMLElement => h("li", { class: "legend-item" }, h("span", { class: `swatch ${categoryClass(category)}`, "aria-hidden": "true" }), words);
  const kinds = (Object.keys(KINDS) as Kind[]).filter((kind) => has(kind, (lane) => kind !== "waiting" || lane === "collectives"));
  return h("ul", { class: "legend step-legend" }, kinds.map((kind) => key(...KINDS[kind])), has("waiting", (lane) => lane !== "collectives") && key("idle", "host or device waits"));
}

function row(rank: number, picture: Lanes, scale: number, isMarked: boolean, lanes: ReadonlySet<Lane>): HTMLElement {
  const pieces = new Map<Lane, HTMLElement[]>();
  picture.rank.forEach((each, index) => {
    if (each !== rank) return;
    const [lane, kind, start, until, busy] = [picture.lane[index]!, picture.kind[index]!, picture.start_ns[index]!, picture.end_ns[index]!, picture.busy_ns[index]!];
    const pale = kind === "waiting" && lane !== "collectives";
    const category = pale ? "idle" : KINDS[kind][0];
    const full = busy / Math.max(until - start, 1);
    const piece = styled(h("span", { class: `piece ${categoryClass(category)}`, "data-rank": rank, "data-what": pale ? PALE[lane]! : KINDS[kind][1], "data-from": start, "data-to": until, "data-busy": busy }),
      { left: `${((100 * start) / scale).toFixed(3)}%`, width: `${((100 * (until - start)) / scale).toFixed(3)}%`, ...(full < 0.97 ? { opacity: (0.3 + 0.7 * full).toFixed(2) } : {}) });
    pieces.set(lane, [...(pieces.get(lane) ?? []), piece]);
  });
  return h("div", { class: `step-row${isMarked ? " marked" : ""}`, "data-rank": rank },
    h("span", { class: "step-rank" }, h("span", { class: "step-word" }, "Rank "), String(rank)),
    h("div", { class: "step-tracks" }, LANES.filter((lane) => lanes.has(lane)).map((lane) => h("div", { class: `step-lane ${lane}` }, pieces.get(lane) ?? []))));
}

/** Where the step ends; what is between this and the recorded end is saved. */
function end(at: number, before: number): HTMLElement {
  const percent = (value: number): string => `${(100 * value).toFixed(3)}%`;
  return h("div", { class: "step-ends", "aria-hidden": "true" },
    before > at ? styled(h("span", { class: "step-gain" }), { left: percent(at), width: percent(before - at) }) : null,
    styled(h("span", { class: "step-end" }), { left: percent(at) }));
}

function axis(scale: number): HTMLElement {
  const size = 10 ** Math.floor(Math.log10(scale / TICKS));
  const width = [1, 2, 5, 10].map((factor) => factor * size).find((each) => scale / each <= TICKS) ?? scale;
  const ticks = Array.from({ length: Math.floor(scale / width) + 1 }, (_, index) => index * width);
  return h("div", { class: "step-axis", "aria-hidden": "true" }, ticks.map((tick) => styled(h("span", {}, formatTick(tick, (value) => formatDuration(value, 3))), { left: `${((100 * tick) / scale).toFixed(3)}%` })));
}

/** What a screen reader says instead of the picture: how long each rank waits. */
function described(words: string, picture: Lanes, ranks: readonly number[]): string {
  const waits = (rank: number): number => picture.rank.reduce((sum, each, index) => (each === rank && picture.lane[index] === "collectives" && picture.kind[index] === "waiting" ? sum + picture.busy_ns[index]! : sum), 0);
  return `${words}, ${formatDuration(picture.duration_ns)}. Waiting for the last rank: ${ranks.map((rank) => `rank ${rank} ${formatDuration(waits(rank), 3)}`).join(", ")}.`;
}

/** Says what is under the pointer. */
function follow(figure: HTMLElement, tip: HTMLElement): void {
  figure.addEventListener("pointermove", (event) => {
    const piece = (event.target as Element).closest<HTMLElement>(".piece");
    tip.hidden = piece === null;
    if (!piece) return;
    const [from, to, busy] = ["from", "to", "busy"].map((name) => Number(piece.dataset[name]));
    const share = busy! / Math.max(to! - from!, 1);
    tip.replaceChildren(h("strong", {}, `Rank ${piece.dataset["rank"]}: ${piece.dataset["what"]}`), h("span", {}, `${formatDuration(busy!)}${share < 0.97 ? ` in a stretch of ${formatDuration(to! - from!)} (${formatRatio(share)})` : ""}, from ${formatDuration(from!)} on`));
    const box = figure.getBoundingClientRect();
    const x = event.clientX - box.left;
    styled(tip, { left: `${Math.min(x + 14, Math.max(0, box.width - 270))}px`, top: `${event.clientY - box.top + 16}px` });
  });
  figure.addEventListener("pointerleave", () => { tip.hidden = true; });
}


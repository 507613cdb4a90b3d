/** From the recorded step to what remains: what each change saves after those before it, as `whatif` gives it. */
import type { Finding } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import { fixedBy, optionOf } from "../data/whatif.ts";
import { factLabel } from "../format/text.ts";
import { exactCell, formatDuration, formatRatio } from "../format/units.ts";
import { eventParams } from "../timeline/anchor.ts";
import { hasTimeline, type ViewContext } from "../views/view.ts";
import { h, named, styled, type Child } from "./dom.ts";
import { inline } from "./doc_text.ts";

/** The replay is judged from here on (`whatif/step_times.py`). */
const EXPLAINED = 0.95;
const MOST_BARS = 6;

/** The finding that a scenario is of, the one that is about the least besides; of ranks that are fixed together, of one of them. */
export function findingOf(findings: readonly Finding[], option: string): Finding | undefined {
  const about = (test: (each: string) => boolean): Finding | undefined =>
    findings.filter(({ scenarios }) => scenarios.some(test)).reduce<Finding | undefined>((best, each) => (best && best.scenarios.length <= each.scenarios.length ? best : each), undefined);
  const fixed = fixedBy(option);
  return about((each) => each === option) ?? (fixed ? about((each) => fixedBy(each)?.ranks.some((rank) => fixed.ranks.includes(rank)) ?? false) : undefined);
}

/** Whether the replay explains so much of the step that it may say what would be saved. */
export function isJudged(table: Table): boolean {
  return (table.number(0, "explained") ?? 0) >= EXPLAINED;
}

/** The rows of the waterfall in its order, without the recorded step. */
export function placedRows(table: Table): number[] {
  const placed = table.rows().filter((row) => (table.number(row, "order") ?? 0) > 0);
  return table.sorted(placed, { column: "order", descending: false });
}

/** The options of the waterfall up to a place. */
export function optionsUpTo(table: Table, rows: readonly number[], last: number): string {
  return rows.slice(0, last + 1).map((row) => optionOf(String(table.cell(row, "command") ?? ""))).join(" ");
}

/** The waterfall, or why there is none; each bar leads to the What-if view with all changes up to it switched on. */
export function waterfall(context: ViewContext, table: Table, current = ""): HTMLElement {
  const recorded = table.number(0, "alone_ns") ?? 0;
  if (!isJudged(table) || recorded <= 0) return notJudged(context, table);
  const rows = placedRows(table);
  const shown = rows.slice(0, MOST_BARS);
  const scale = Math.max(recorded, table.number(0, "step_ns") ?? 0);
  const stepAfter = (index: number): number => table.number(rows[index] ?? 0, "step_ns") ?? recorded;
  const last = stepAfter(rows.length - 1);
  const whole = context.payload.run.steps.length > 0 ? "Step" : "Recorded window";
  return h("div", { class: "figure waterfall-figure" },
    h("ol", { class: "waterfall", "data-testid": "waterfall", "data-value": recorded },
      bar({ label: rows.length === 0 ? `${whole}: nothing to change gains 1 % of it` : `${whole} as recorded`, from: 0, to: recorded, scale, text: formatDuration(recorded), exact: exactCell(recorded, "ns"), kind: "total" }),
      shown.map((row, index) => change(context, table, row, { before: index === 0 ? table.number(0, "step_ns") ?? recorded : stepAfter(index - 1), scale, href: hrefTo(context, optionsUpTo(table, rows, index)), current: optionsUpTo(table, rows, index) === current })),
      rows.length > shown.length && bar({
        label: h("a", { href: hrefTo(context, optionsUpTo(table, rows, rows.length - 1)) }, `${rows.length - shown.length} more changes`), from: last, to: stepAfter(shown.length - 1), scale,
        text: minus(stepAfter(shown.length - 1) - last, scale), exact: null, kind: "bound",
      }),
      rows.length > 0 && bar({ label: "What remains", from: 0, to: last, scale, text: formatDuration(last), exact: exactCell(last, "ns"), kind: "rest" })),
    h("p", { class: "waterfall-note" }, `Mean of ${table.number(0, "steps") ?? 0} steps; the replay explains ${formatRatio(table.number(0, "explained") ?? 0)} of it. `,
      rows.some((row) => !isCause(table, row)) && "Hatched: a bound that no job reaches. ",
      context.place.view !== "whatif" && h("a", { href: hrefTo(context, "") }, "Try other changes")));
}

function hrefTo(context: ViewContext, options: string): string {
  return context.router.href("whatif", options === "" ? {} : { with: options });
}

/** Ranks and groups that are slower than others are causes; what all ranks do is bounded. */
function isCause(table: Table, row: number): boolean {
  return String(table.cell(row, "command") ?? "").includes("--fix ");
}

function change(context: ViewContext, table: Table, row: number, at: { readonly before: number; readonly scale: number; readonly href: string; readonly current: boolean }): HTMLElement {
  const [after, gain, component] = [table.number(row, "step_ns") ?? 0, table.number(row, "gain_ns") ?? 0, table.cell(row, "component")];
  const finding = findingOf(context.payload.findings, optionOf(String(table.cell(row, "command") ?? "")));
  const event = finding?.place?.event;
  const cause = isCause(table, row);
  return bar({
    label: [h("a", { href: at.href, "data-testid": "waterfall-change", "aria-current": at.current ? "true" : null }, named(String(table.cell(row, "scenario") ?? ""), 90)),
      typeof component === "string" ? h("small", {}, ` ${factLabel(component).toLowerCase()}`) : null,
      finding && context.place.view !== "whatif" ? h("a", { class: "waterfall-why", href: context.router.href("overview"), "data-testid": "waterfall-finding", title: finding.title, click: (press) => { press.preventDefault(); showFinding(finding); } }, "finding") : null,
      event && hasTimeline(context) ? h("a", { class: "waterfall-why", href: context.router.href("timeline", eventParams(event)), "data-testid": "waterfall-event" }, "event") : null],
    from: after, to: Math.max(after, at.before), scale: at.scale, text: minus(gain, at.scale), exact: exactCell(gain, "ns"), kind: cause ? "cause" : "bound",
  });
}

/** Scrolls to a finding of the page; those that are folded are unfolded first. */
function showFinding({ id, title }: Finding): void {
  const find = (): HTMLElement | undefined => [...document.querySelectorAll<HTMLElement>(`[data-testid=finding][data-finding="${CSS.escape(id)}"]`)].find((each) => each.textContent?.includes(title));
  if (!find()) document.querySelector<HTMLElement>("[data-testid=findings] + button")?.click();
  const found = find();
  found?.scrollIntoView({ block: "center" });
  found?.focus({ preventScroll: true });
}

function minus(gain: number, of: number): Child {
  return [`−${formatDuration(gain, 3)}`, h("small", {}, formatRatio(of > 0 ? gain / of : 0))];
}

interface BarSpec {
  readonly label: Child;
  readonly from: number;
  readonly to: number;
  readonly scale: number;
  readonly text: Child;
  readonly exact: string | null;
  readonly kind: "total" | "cause" | "bound" | "rest";
}

function bar({ label, from, to, scale, text, exact, kind }: BarSpec): HTMLElement {
  const percent = (value: number): string => `${((100 * value) / scale).toFixed(3)}%`;
  return h("li", { class: `waterfall-row ${kind}`, "data-value": to - from },
    h("span", { class: "waterfall-label" }, label),
    h("span", { class: "waterfall-track", "aria-hidden": "true" }, styled(h("span", { class: "waterfall-bar" }), { left: percent(from), width: percent(to - from) })),
    h("span", { class: "waterfall-value", title: exact }, text));
}

function notJudged(context: ViewContext, table: Table): HTMLElement {
  const [explained, note] = [table.number(0, "explained"), table.cell(0, "note")];
  const why = typeof note === "string" ? note : "the reason is not known";
  return h("p", { class: "quiet-box", "data-testid": "waterfall-not-judged", "data-value": explained ?? "" },
    explained === null ? "What changes would save is not judged: the run cannot be replayed. " : [h("strong", {}, `The replay explains ${formatRatio(explained)} of the step: not judged. `)],
    inline(`${why.charAt(0).toUpperCase()}${why.slice(1)}.`),
    explained !== null && context.place.view !== "whatif" ? [" ", h("a", { href: hrefTo(context, "") }, "Compare the replay with the recording")] : null);
}

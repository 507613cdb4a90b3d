/** The time of every step on every rank, one dot each, one rank's marked: steps that stick out, and ranks that do. */
import { h } from "../components/dom.ts";
import { formatDuration } from "../format/units.ts";
import { color } from "../theme/theme.ts";
import type { ViewContext } from "../views/view.ts";
import { chart } from "./chart.ts";
import type { EChartsOption } from "./echarts.ts";
import { amountAxis, baseOption, namedAxis, splits } from "./option.ts";

const DOTS = 6000;

export function stepDots(
  context: ViewContext, ranks: readonly number[], steps: readonly (number | null)[], values: readonly (number | null)[], highlight: { rank: number; why: string } | null, onPick: (rank: number, step: number | null) => void,
): HTMLElement {
  const stride = Math.max(1, Math.ceil((ranks.length * steps.length) / DOTS));
  const dots: [number, number, number][] = [];
  const marked: [number, number, number][] = [];
  ranks.forEach((rank, i) => steps.forEach((_, j) => {
    const value = values[i * steps.length + j];
    if (value === null || value === undefined) return;
    if (rank === highlight?.rank) marked.push([j, value, rank]);
    else if ((i * steps.length + j) % stride === 0) dots.push([j, value, rank]);
  }));
  const names = steps.map((step) => (step === null ? "entire trace" : String(step)));
  const from = axisStart(values);
  const drawing = chart(context, {
    label: "Step time of each rank by step; the numbers are in the table above.", testId: "chart-step-dots", height: () => 260,
    option: (width) => option(names, dots, marked, from, width),
    pick: { axis: "x", count: steps.length,
      describe: (index) => `Step ${names[index]}: ${marked.filter(([at]) => at === index).map(([, value, rank]) => `rank ${rank} ${formatDuration(value)}, `).join("")}longest ${formatDuration(ranks.reduce((most, _, i) => Math.max(most, values[i * steps.length + index] ?? 0), 0))}`,
      tipAt: (index) => { const at = marked.findIndex(([step]) => step === index); return at < 0 ? null : { seriesIndex: 1, dataIndex: at }; },
      on: (index) => onPick(highlight?.rank ?? ranks[0] ?? 0, steps[index] ?? null) },
  });
  return h("div", {}, h("ul", { class: "legend" }, highlight === null ? null : h("li", { class: "legend-item" }, h("span", { class: "glyph ink-0", "aria-hidden": "true" }, "◆"), `rank ${highlight.rank} (${highlight.why})`),
    h("li", { class: "legend-item" }, h("span", { class: "glyph ink-1", "aria-hidden": "true" }, "●"), highlight === null ? "each rank" : "other ranks"),
    from === 0 ? null : h("li", { class: "legend-item muted" }, `the axis starts at ${formatDuration(from)}`)), drawing.element);
}

/** Where the axis of step times begins: at 0, or below the shortest step where from 0 on all of them would look the same. */
export function axisStart(values: readonly (number | null)[]): number {
  const known = values.filter((value) => value !== null);
  const most = known.reduce((peak, value) => Math.max(peak, value), 0);
  const least = known.reduce((low, value) => Math.min(low, value), most);
  const spread = Math.max(most - least, most / 20); // a difference of 1 % does not fill the picture
  const from = Math.max(0, least - spread / 2);
  if (most === 0 || from < most / 3) return 0;
  const unit = 10 ** Math.floor(Math.log10(spread / 2));
  return Math.floor(from / unit) * unit;
}

function option(names: readonly string[], dots: readonly [number, number, number][], marked: readonly [number, number, number][], from: number, width: number): EChartsOption {
  const tip = (params: unknown): HTMLElement => {
    const [step = 0, value = 0, rank = 0] = (params as { data?: number[] }).data ?? [];
    return h("div", { class: "tip" }, `Rank ${rank}, step ${names[step] ?? ""}: ${formatDuration(value)}`);
  };
  return {
    ...baseOption(tip, { margins: { right: 18 } }),
    xAxis: namedAxis("Step", { type: "category", data: [...names], axisTick: { show: false } }, { color: color("--text") }),
    yAxis: amountAxis(formatDuration, { min: from, splitNumber: splits(width) }, { hideOverlap: true, showMinLabel: from === 0 }),
    series: [
      { type: "scatter", symbol: "circle", symbolSize: 6, itemStyle: { color: color("--cat-compute"), opacity: 0.6 }, emphasis: { disabled: true }, data: dots.map((dot) => [...dot]) },
      { type: "scatter", symbol: "diamond", symbolSize: 11, itemStyle: { color: color("--cat-communication") }, emphasis: { disabled: true }, data: marked.map((dot) => [...dot]) },
    ],
  } as EChartsOption;
}

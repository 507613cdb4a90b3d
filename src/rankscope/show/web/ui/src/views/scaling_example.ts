/** What a measurement of scaling looks like, for runs that have none: made-up numbers, marked as an example on every part. */
import { intervalsChart, type IntervalsSpec, type Point } from "../charts/intervals.ts";
import { h } from "../components/dom.ts";
import { inline } from "../components/doc_text.ts";
import type { ViewContext } from "./view.ts";

const SPEED_UP: readonly Point[] = [
  { ranks: 1, value: 1, low: 0.99, high: 1.01 }, { ranks: 2, value: 1.93, low: 1.9, high: 1.96 }, { ranks: 4, value: 3.62, low: 3.52, high: 3.72 },
  { ranks: 8, value: 6.4, low: 6.15, high: 6.65 }, { ranks: 16, value: 10.4, low: 9.8, high: 11 },
];
const SPEED_UP_LATER: readonly Point[] = [{ ranks: 32, value: 15.2, low: 13.4, high: 17 }, { ranks: 64, value: 19.8, low: 16, high: 23.6 }];
const EFFICIENCY: readonly Point[] = [
  { ranks: 1, value: 1, low: 0.99, high: 1.01 }, { ranks: 2, value: 0.965, low: 0.95, high: 0.98 }, { ranks: 4, value: 0.905, low: 0.88, high: 0.93 },
  { ranks: 8, value: 0.8, low: 0.77, high: 0.83 }, { ranks: 16, value: 0.65, low: 0.61, high: 0.69 },
];
const EFFICIENCY_LATER: readonly Point[] = [{ ranks: 32, value: 0.475, low: 0.42, high: 0.53 }, { ranks: 64, value: 0.31, low: 0.25, high: 0.37 }];

type Shares = Readonly<Record<"speed_up" | "efficiency", Pick<IntervalsSpec, "title" | "label" | "perfect" | "doubling" | "format">>>;

export function scalingExample(context: ViewContext, shares: Shares): HTMLElement {
  const picture = (of: keyof Shares, measured: readonly Point[], projected: readonly Point[]): HTMLElement =>
    h("div", { class: "example" }, intervalsChart(context, { ...shares[of], title: `Example: ${shares[of].title}`, label: `Example with made-up numbers. ${shares[of].label}`, testId: `chart-example-${of.replace("_", "-")}`, measured, oversubscribed: [], projected, example: true }),
      h("p", { class: "example-mark", "aria-hidden": "true" }));
  return h("section", { "aria-labelledby": "example-title", "data-testid": "scaling-example" },
    h("h3", { id: "example-title" }, "Example: what a measurement shows"),
    h("p", { class: "note" }, inline("These numbers are made up and are not of this run. `rankscope measure scaling train.py` runs your job at several sizes and puts its own numbers here.")),
    h("div", { class: "pair" }, picture("speed_up", SPEED_UP, SPEED_UP_LATER), picture("efficiency", EFFICIENCY, EFFICIENCY_LATER)));
}

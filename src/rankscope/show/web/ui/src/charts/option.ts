/** What all charts have in common: letters, margins, tooltip and axes in the colors of the theme. */
import { formatTick } from "../format/units.ts";
import { color } from "../theme/theme.ts";
import { FONT } from "./font.ts";

export interface Margins {
  readonly left?: number;
  readonly right?: number;
  readonly top?: number;
  readonly bottom?: number;
}

/** What a tooltip is about: one item, all that is at a place of the axis, or a bar, which is shaded then. */
export type TipOf = "item" | "axis" | "bar";

/** `tip` gives the content of the tooltip. */
export function baseOption(tip: (params: unknown) => HTMLElement, { of = "item", margins = {} }: { readonly of?: TipOf; readonly margins?: Margins } = {}): object {
  return {
    animation: false,
    textStyle: { fontFamily: FONT },
    grid: { left: 10, right: 24, top: 12, bottom: 30, ...margins, containLabel: true },
    tooltip: {
      trigger: of === "item" ? "item" : "axis", ...(of === "bar" ? { axisPointer: { type: "shadow" } } : {}), confine: true,
      backgroundColor: color("--surface"), borderColor: color("--line"), textStyle: { color: color("--text") }, formatter: tip,
    },
  };
}

/** An axis of amounts along the bottom, or with its name beside it: no lines through the picture. */
export function namedAxis(name: string, more: object = {}, label: object = {}): object {
  return {
    type: "value", name, nameLocation: "middle", nameGap: 26, nameTextStyle: { color: color("--muted") },
    axisLabel: { color: color("--muted"), hideOverlap: true, ...label }, splitLine: { show: false }, axisLine: { lineStyle: { color: color("--line") } }, ...more,
  };
}

/** An axis of amounts, with a line at each of its marks. */
export function amountAxis(format: (value: number) => string, more: object = {}, label: object = {}): object {
  return { type: "value", axisLabel: { color: color("--muted"), ...ticks(format), ...label }, splitLine: { lineStyle: { color: color("--line") } }, ...more };
}

/** The marks of an axis as they are written. */
export function ticks(format: (value: number) => string): object {
  return { formatter: (value: number) => formatTick(value, format) };
}

/** How many marks an axis has: fewer in a narrow chart. */
export function splits(width: number): number {
  return width < 520 ? 3 : 5;
}

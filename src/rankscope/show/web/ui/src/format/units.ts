/** Numbers for people: three or four significant digits and a unit that fits. The exact number stays in the title. */
import type { Cell } from "../data/payload.ts";
import { formatRanks } from "./ranks.ts";

export const MISSING = "–";
const NBSP = "\u00a0";
/** The sign that is as wide as a plus, and no hyphen. */
const MINUS = "\u2212";

const TIME: readonly (readonly [number, string])[] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const BYTES: readonly (readonly [number, string])[] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Units whose values are written in full. */
const WHOLE = new Set(["count", "ranks", "elements"]);

export function significant(value: number, digits = 4): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return String(value);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Number(size.toPrecision(digits)))));
  if (decimals === 0) return grouped(Math.round(value));
  return decimals > 8 ? value.toPrecision(digits) : value.toFixed(decimals);
}

export function grouped(value: number): string {
  const [whole = "", part] = String(value).split(".");
  if (/[eE]/.test(whole)) return whole;
  const text = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return part === undefined ? text : `${text}.${part}`;
}

function scaled(value: number, scale: readonly (readonly [number, string])[], digits = 4): string {
  if (value === 0) return "0";
  if (value < 0) return `${MINUS}${scaled(-value, scale, digits)}`;
  for (const [step, unit] of scale) {
    if (value < step * (1 - 0.5 * 10 ** -digits) && step !== 1) continue; // 999.96 µs rounds to 1.000 ms, not to 1000.0 µs
    if (step === 1 && Number.isInteger(value)) return `${grouped(value)}${NBSP}${unit}`;
    return `${significant(value / step, digits)}${NBSP}${unit}`;
  }
  return `${significant(value, digits)}${NBSP}${scale.at(-1)?.[1] ?? ""}`;
}

export function formatDuration(ns: number, digits = 4): string {
  return scaled(ns, TIME, digits);
}

/** For an axis: round numbers without their trailing zeros. */
export function formatTick(value: number, format: (value: number) => string): string {
  return value === 0 ? "0" : format(value).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** A moment on the run's clock: milliseconds, to the microsecond. */
export function formatMoment(ns: number): string {
  const us = Math.round(Math.abs(ns) / 1e3);
  return `${ns < 0 ? MINUS : ""}${grouped(Math.floor(us / 1e3))}.${String(us % 1e3).padStart(3, "0")}${NBSP}ms`;
}

export function formatBytes(bytes: number): string {
  return scaled(bytes, BYTES);
}

export function formatRatio(ratio: number): string {
  if (ratio < 0) return `${MINUS}${formatRatio(-ratio)}`;
  const percent = ratio * 100;
  if (percent > 0 && percent < 0.005) return `<${NBSP}0.01${NBSP}%`; // 0.00 % would read as zero
  return `${percent.toFixed(percent > 0 && percent < 1 ? 2 : 1)}${NBSP}%`;
}

/** A value of any column as text. Moments keep their last digits, in which neighbors differ. */
export function formatCell(value: Cell, unit: string, moment = false): string {
  if (value === null) return MISSING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (typeof value !== "number") return formatList(value);
  switch (unit) {
    case "ns": return moment ? formatMoment(value) : formatDuration(value);
    case "us": case "µs": return formatDuration(value * 1000);
    case "ms": return formatDuration(value * 1e6);
    case "s": return formatDuration(value * 1e9);
    case "bytes": case "B": return formatBytes(value);
    case "ratio": return formatRatio(value);
    case "count": case "ranks": case "elements": return Number.isInteger(value) ? grouped(value) : significant(value);
    case "": return Number.isInteger(value) ? String(value) : significant(value);
    default: return `${Number.isInteger(value) ? grouped(value) : significant(value)}${NBSP}${unit}`;
  }
}

/** The same value to the last digit, for titles; null if the text is exact. */
export function exactCell(value: Cell, unit: string): string | null {
  if (typeof value !== "number") return null;
  return unit === "" || WHOLE.has(unit) ? null : `${grouped(value)} ${unit}`;
}

function formatList(values: readonly (string | number)[]): string {
  return values.every((value) => typeof value === "number") ? formatRanks(values as number[]) : values.join(", ");
}

/** WCAG AA, computed from theme.css: text 4.5 : 1, and 3 : 1 for what is drawn (focus, borders of controls, categories). */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

const css = readFileSync(new URL("../src/theme/theme.css", import.meta.url), "utf8");

function tokens(block: string): Map<string, string> {
  return new Map([...block.matchAll(/(--[\w-]+):\s*([^;]+);/g)].map((found) => [found[1]!, found[2]!.trim()]));
}

const blocks = [...css.matchAll(/\{([^{}]*--page[^{}]*)\}/g)].map((found) => tokens(found[1]!));
const [light, dark, system] = blocks as [Map<string, string>, Map<string, string>, Map<string, string>];

function luminance(hex: string): number {
  const channels = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * channels[0]! + 0.7152 * channels[1]! + 0.0722 * channels[2]!;
}

function contrast(theme: Map<string, string>, front: string, back: string): number {
  const [a, b] = [front, back].map((name) => luminance(theme.get(name) ?? "")) as [number, number];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

const TEXT: readonly (readonly [string, string])[] = [
  ...["--text", "--muted", "--accent"].flatMap((front) => ["--page", "--surface", "--raised"].map((back) => [front, back] as const)),
  ["--text", "--info-soft"], ["--text", "--warning-soft"], ["--text", "--error-soft"], ["--good", "--surface"],
  ["--error", "--error-soft"], ["--warning", "--warning-soft"], ["--info", "--info-soft"], ["--error", "--surface"], ["--warning", "--surface"],
];
const DRAWN: readonly (readonly [string, string])[] = [["--focus", "--page"], ["--focus", "--surface"], ["--line-strong", "--surface"], ["--select", "--surface"]];

test("there are three themes, and dark by choice is dark by system", () => {
  expect(blocks).toHaveLength(3);
  expect([...system]).toEqual([...dark]);
  expect([...light.keys()]).toEqual([...dark.keys()]);
});

test.each([["light", light], ["dark", dark]] as const)("contrast in %s", (_, theme) => {
  const below = (pairs: typeof TEXT, least: number): string[] => pairs.filter(([front, back]) => !(contrast(theme, front, back) >= least)).map(([front, back]) => `${front} on ${back}: ${contrast(theme, front, back).toFixed(2)}`);
  expect(below(TEXT, 4.5)).toEqual([]);
  expect(below(DRAWN, 3)).toEqual([]);
});

test("the formula is WCAG's: black on white is 21 : 1, #767676 on white is the last gray of AA", () => {
  const known = new Map([["black", "#000000"], ["white", "#ffffff"], ["gray", "#767676"], ["lighter", "#777777"]]);
  expect(contrast(known, "black", "white")).toBeCloseTo(21, 5);
  expect(contrast(known, "gray", "white")).toBeGreaterThan(4.5);
  expect(contrast(known, "lighter", "white")).toBeLessThan(4.5);
});

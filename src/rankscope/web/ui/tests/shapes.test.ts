import { expect, test } from "vitest";
import { shapeText } from "../src/format/shapes.ts";

test.each([
  ["[[4,256,2,2],[256],[]]", "4×256×2×2, 256"],
  ["[[],[2,3]]", "–, 2×3"],
  ["[[[2,3],[4]],[1]]", "(2×3, 4), 1"],
  ["[128,1,1]", "128×1×1"],
  ["[]", "–"],
  ["[[2,", "[[2,"],
  ['["a"]', '["a"]'],
  ["float", "float"],
])("%s", (text, shown) => {
  expect(shapeText(text)).toBe(shown);
});

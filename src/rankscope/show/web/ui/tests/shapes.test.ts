import { expect, test } from "vitest";
import { inputsText, shapeText } from "../src/format/shapes.ts";

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

test.each([
  ['input dims: [[264320]]\ninput types: ["float"]\nconcrete inputs: [""]', "264320 float"],
  ['input dims: [[4,256],[],[]]\ninput types: ["c10::Half","Scalar","Int"]\nconcrete inputs: ["","","-1"]', "4×256 Half, Scalar, -1"],
  ["input dims: [[2,3],[3,4],[]]", "2×3, 3×4"],
  ['input dims: [[[2,3],[4]]]\ninput types: ["TensorList"]', "(2×3, 4) TensorList"],
  ['input types: ["a: b"]', "a: b"],
  ["input dims: [[2,", "input dims: [[2,"],
  ["[[2,3]]", "[[2,3]]"],
])("%s", (lines, shown) => {
  expect(inputsText(lines)).toBe(shown);
});

/** Shapes of tensors as people write them: `4×256×2×2, 256`, from the trace's `[[4,256,2,2],[256],[]]`. */

const LONGEST = 20_000;

/** Inputs without a shape (numbers, options) are a dash, and left out at the end; text that is not a list stays as it is. */
export function shapeText(text: string): string {
  if (!text.startsWith("[") || text.length > LONGEST) return text;
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return text;
  }
  if (!Array.isArray(parsed)) return text;
  if (parsed.length > 0 && parsed.every((each) => typeof each === "number")) return dimensions(parsed);
  const parts = parsed.map(one);
  if (parts.includes(null)) return text;
  while (parts.at(-1) === "–") parts.pop();
  return parts.join(", ") || "–";
}

function one(value: unknown): string | null {
  if (!Array.isArray(value)) return null;
  if (value.length === 0) return "–";
  if (value.every((each) => typeof each === "number")) return dimensions(value);
  const inner = value.map(one); // a list of tensors
  return inner.includes(null) ? null : `(${inner.join(", ")})`;
}

function dimensions(sizes: readonly unknown[]): string {
  return sizes.join("×");
}

/** Shapes of tensors as people write them: `4×256×2×2, 256`, from the trace's `[[4,256,2,2],[256],[]]`. */

const LONGEST = 20_000;

/** Inputs without a shape (numbers, options) are a dash, and left out at the end; text that is not a list stays as it is. */
export function shapeText(text: string): string {
  const parsed = parsedList(text);
  if (parsed === null) return text;
  if (parsed.length > 0 && parsed.every((each) => typeof each === "number")) return dimensions(parsed);
  const parts = parsed.map(one);
  if (parts.includes(null)) return text;
  while (parts.at(-1) === "–") parts.pop();
  return parts.join(", ") || "–";
}

/** What an event was given, of lines as `input dims: [[4,256],[]]`, `input types: ["float","Scalar"]`, `concrete inputs: ["","2"]`: `4×256 float, 2`. Text that is none of this stays as it is. */
export function inputsText(lines: string): string {
  const lists = new Map<string, readonly unknown[]>();
  for (const line of lines.split("\n")) {
    const [label, ...rest] = line.split(": ");
    const list = parsedList(rest.join(": "));
    if (list === null) return lines;
    lists.set(label ?? "", list);
  }
  const [dims = [], types = [], values = []] = ["input dims", "input types", "concrete inputs"].map((label) => lists.get(label));
  const parts = Array.from({ length: Math.max(dims.length, types.length, values.length) }, (_, index) => {
    const shape = one(dims[index] ?? []);
    const [type, value] = [types[index], values[index]].map((each) => (typeof each === "string" ? each.replace(/^c10::/, "") : ""));
    return shape !== null && shape !== "–" ? `${shape} ${type}`.trim() : value || type || "–";
  });
  while (parts.at(-1) === "–") parts.pop();
  return parts.join(", ") || "–";
}

function parsedList(text: string): readonly unknown[] | null {
  if (!text.startsWith("[") || text.length > LONGEST) return null;
  try {
    const parsed: unknown = JSON.parse(text);
    return Array.isArray(parsed) ? parsed : null;
  } catch {
    return null;
  }
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

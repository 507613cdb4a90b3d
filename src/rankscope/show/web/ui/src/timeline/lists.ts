/** Lists as text: numbers for the server and for the address, and texts of any characters for the address. */

/** `0-15,40`, as the server takes them; the numbers must rise. */
export function ranges(numbers: readonly number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < numbers.length; ) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j]! + 1) j++;
    parts.push(i === j ? String(numbers[i]) : `${numbers[i]}-${numbers[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}

/** `0-3.8`, for the address: dots and dashes need no escape in a URL. */
export function writeNumbers(values: ReadonlySet<number>): string {
  return ranges([...values].sort((a, b) => a - b)).replaceAll(",", ".");
}

export function readNumbers(text: string | undefined): Set<number> {
  const values = new Set<number>();
  for (const part of (text ?? "").split(".")) {
    const found = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
    if (!found) continue;
    const last = Math.min(Number(found[2] ?? found[1]), Number(found[1]) + 100_000);
    for (let value = Number(found[1]); value <= last; value++) values.add(value);
  }
  return values;
}

/** A text without `!` and `~`, which separate the parts of a list. */
export function escaped(text: string): string {
  return encodeURIComponent(text).replaceAll("!", "%21").replaceAll("~", "%7E");
}

/** The text again; empty where it is damaged. */
export function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

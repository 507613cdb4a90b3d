/** What a reader types to find or filter: words, or a regular expression between slashes. */

/** The expression of `/…/`, or of `/…/i`, as case is ignored anyway; null where the text is not one. */
export function slashed(text: string): string | null {
  const trimmed = text.trim().replace(/(?<=^\/.+\/)i$/, "");
  return trimmed.length > 2 && trimmed.startsWith("/") && trimmed.endsWith("/") ? trimmed.slice(1, -1) : null;
}

/** A regular expression, ignoring case; null where it is not valid. */
export function expression(source: string): RegExp | null {
  try {
    return new RegExp(source, "i");
  } catch {
    return null;
  }
}

/** Whether a name contains what was typed, or matches it as a regular expression; null for nothing, or no valid expression. */
export function matcher(text: string): ((name: string) => boolean) | null {
  const source = slashed(text);
  const pattern = source === null ? null : expression(source);
  const plain = text.trim().toLowerCase();
  if (plain === "" || (source !== null && !pattern)) return null;
  return pattern ? (name) => pattern.test(name) : (name) => name.toLowerCase().includes(plain);
}

/** The parameters of `api/search` for what was typed. */
export function searchParams(text: string): { readonly q: string; readonly match: "text" | "regex" } {
  const source = slashed(text);
  return source === null ? { q: text.trim(), match: "text" } : { q: source, match: "regex" };
}

/** The expression that only one name matches, in JavaScript and in Rust's syntax; `…` in it stands for a hash. */
export function exactly(name: string): string {
  return `^${name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&").replace(/…/g, "(?:…|[0-9A-Za-z]+)")}$`;
}

/** Nesting of a track's events: what encloses each, and its self time, as `primitives/nesting.py` has them. */
export interface Span { readonly start: number; readonly end: number }

export interface Nested<T> {
  readonly span: T;
  /** Where the one around it is in the result; −1 at top level. */
  readonly around: number;
  self: number;
}

/** The spans by start, of equal starts the longest first. Of spans that cross, the later one is inside while the earlier is open. */
export function nested<T extends Span>(spans: readonly T[]): Nested<T>[] {
  const sorted = spans.map((span, order) => ({ span, order })).sort((a, b) => a.span.start - b.span.start || b.span.end - a.span.end || a.order - b.order);
  const found: Nested<T>[] = [];
  const last: number[] = [];
  let open: T[] = [];
  for (const { span } of sorted) {
    const { start, end } = span;
    // One without duration is open at its instant.
    open = open.filter((other) => other.end > start || (other.end === start && other.start === start));
    const around = open.length > 0 ? last[open.length - 1]! : -1;
    last[open.length] = found.length;
    open.push(span);
    if (around >= 0) found[around]!.self -= Math.max(0, Math.min(end, found[around]!.span.end) - start);
    found.push({ span, around, self: end - start });
  }
  for (const each of found) each.self = Math.max(0, each.self);
  return found;
}

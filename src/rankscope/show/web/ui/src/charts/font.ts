/** The page's own letters, for canvases. */
export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';

/** A label cut to a width, its end marked: at least one letter of it. */
export function fitted(c: Pick<CanvasRenderingContext2D, "measureText">, label: string, width: number): string {
  if (c.measureText(label).width <= width) return label;
  let [low, high] = [1, Math.max(1, label.length - 1)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${label.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${label.slice(0, low)}…`;
}

/** What the two canvases of the timeline share: the frame to draw, its colors and its fixed measures. */
import type { Category } from "../theme/categories.ts";
import type { Scene } from "./draw.ts";
import type { Ink } from "./raster.ts";

/** The height of the ruler above the rows, in pixels. */
export const RULER = 44;
/** Data movement, which compute should overlap. Only these categories are drawn with their patterns. */
export const MOVING: ReadonlySet<Category> = new Set(["communication", "memory", "memset"]);

export interface Frame {
  readonly scene: Scene;
  readonly scroll: number;
  readonly first: number;
  readonly last: number;
}

export interface Palette {
  readonly inks: readonly Ink[];
  /** The text color on each ink. */
  readonly onInk: readonly string[];
  readonly hatch: Ink & { readonly a: number };
  readonly page: Ink;
  readonly lane: Ink;
  readonly rankRow: Ink;
  readonly text: string;
  readonly muted: string;
  readonly line: string;
  readonly strong: string;
  readonly strongInk: Ink;
  readonly accent: string;
  readonly surface: string;
  readonly warning: string;
  readonly error: string;
  readonly select: string;
}

/** A category's color and pattern next to its word. */
import { CATEGORIES, type Category } from "../theme/categories.ts";
import { h } from "./dom.ts";

export function swatch(category: Category): HTMLElement {
  return h("span", { class: `swatch ${categoryClass(category)}`, "aria-hidden": "true" });
}

/** The class names that paint an element in a category's color and pattern (charts.css). */
export function categoryClass(category: Category): string {
  return `cat-${category.replace("_", "-")} pattern-${CATEGORIES[category].pattern}`;
}

/** The only way elements are made here: text becomes text nodes, so no name from a trace is ever read as markup. */
import { shownName, titleName } from "../format/text.ts";

export type Child = Node | string | null | false | undefined | readonly Child[];
type Props = Readonly<Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>>;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(parent: Element, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(parent, child as readonly Child[]);
    else parent.append(child as Node | string);
  }
}

/** A name from a trace: isolated from the text around it (right-to-left names), shortened, complete in its title. */
export function named(text: string, limit?: number): HTMLElement {
  const shown = shownName(text, limit);
  return h("bdi", { class: "name", title: shown === text ? null : titleName(text) }, shown);
}

export function styled<E extends HTMLElement>(element: E, values: Readonly<Record<string, string>>): E {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
  return element;
}

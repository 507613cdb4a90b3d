/** Buttons and selectors, each with a name that a screen reader says. */
import { h, type Child } from "./dom.ts";

type Attributes = Readonly<Record<string, string>>;

export function button(attributes: Attributes, press: () => void, ...children: Child[]): HTMLButtonElement {
  return h("button", { type: "button", ...attributes, click: press }, ...children);
}

export interface Choice {
  readonly value: string;
  readonly label: string;
}

export function selector(id: string, label: string, choices: readonly Choice[], chosen: string, choose: (value: string) => void): HTMLElement {
  const select = h("select", { id, "data-testid": id, autocomplete: "off", // what a browser restores after a reload is not what is shown
    change: () => choose(select.value) },
    choices.map((choice) => h("option", { value: choice.value, selected: choice.value === chosen }, choice.label)));
  return h("label", { class: "field", for: id }, h("span", {}, label), select);
}

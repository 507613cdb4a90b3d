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

/** Copies a text. Where the browser refuses, it says what to do instead. */
export function copyButton(attributes: Attributes, words: string, instead: string, text: () => string): HTMLButtonElement {
  const word = h("span", { class: "copy-word" }, words);
  return button({ "aria-live": "polite", ...attributes }, () => {
    void copied(text()).then((done) => {
      word.textContent = done ? "Copied" : instead;
      setTimeout(() => { word.textContent = words; }, 2000);
    });
  }, word);
}

/** Whether the text is on the clipboard. */
async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // not allowed, or the page is not from a secure address
    const field = h("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** What an analysis answers, as its first line: its own sentence, with its numbers as people read them. */
import type { Headline } from "../data/payload.ts";
import { exactCell, formatCell } from "../format/units.ts";
import { h, named, type Child } from "./dom.ts";

const NAME_LIMIT = 90;
/** A finding's title is a sentence, around names. */
const TITLE_LIMIT = 300;

export function answer(name: string, headline: Headline): HTMLElement {
  return h("p", { class: "answer", "data-testid": `answer-${name}` }, sentence(headline));
}

/** The text with its values in place; a place without a value stays as it was written. */
export function sentence({ text, values }: Headline): Child[] {
  const known = new Map(values.map((each) => [each.name, each]));
  return text.split(/(\{\w+\})/).map((part) => {
    const value = /^\{\w+\}$/.test(part) ? known.get(part.slice(1, -1)) : undefined;
    if (!value) return part;
    const shown = typeof value.value === "string" ? named(value.value, value.name === "finding" ? TITLE_LIMIT : NAME_LIMIT) : formatCell(value.value, value.unit);
    return h("strong", { "data-name": value.name, "data-value": value.value === null ? "" : String(value.value), title: exactCell(value.value, value.unit) }, shown);
  });
}

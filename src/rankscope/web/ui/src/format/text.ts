/** Names come from other people's files: shown as text, with what would hide or turn it made visible, and bounded. */

const NAME_LIMIT = 160;
const TITLE_LIMIT = 2000;

/** Control characters, and the invisible ones that reorder the text around them. */
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export function visible(text: string): string {
  return text.replace(HIDDEN, (mark) => (mark === "\n" || mark === "\t" ? " " : `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`));
}

/** At most `limit` characters, with the head and the tail kept: kernel names differ at both ends. */
export function elide(text: string, limit = NAME_LIMIT): string {
  if (text.length <= limit) return text;
  const tail = Math.floor(limit / 4);
  const head = limit - tail - 1;
  return `${whole(text.slice(0, head), "end")}…${whole(text.slice(-tail), "start")}`;
}

/** Cuts half of a surrogate pair off the side that was cut. */
function whole(text: string, side: "start" | "end"): string {
  return side === "end" ? text.replace(/[\ud800-\udbff]$/, "") : text.replace(/^[\udc00-\udfff]/, "");
}

export function shownName(text: string, limit = NAME_LIMIT): string {
  return elide(visible(text.length > 4 * TITLE_LIMIT ? elide(text, 2 * TITLE_LIMIT) : text), limit);
}

/** For a title: the whole name up to a bound, and how much was cut. */
export function titleName(text: string): string {
  const shown = visible(elide(text, TITLE_LIMIT));
  return text.length > TITLE_LIMIT ? `${shown} (${text.length} characters, shortened)` : shown;
}

/** `exposed_communication_ns` as a person would write it. The unit stands in the cells. */
export function columnLabel(column: string): string {
  const words = column.replace(/_ns$/, "").replaceAll("_", " ").trim();
  return words === "" ? column : words.charAt(0).toUpperCase() + words.slice(1);
}

/** Names of code in a sentence: written as they are, or nobody finds them again. */
const CODE = /::|\b[a-z]+[A-Z]|_\w*\d|\d\w*_|__/;

/** What a fact is called: plain words, with names of code left alone. */
export function factLabel(name: string): string {
  return CODE.test(name) ? name : columnLabel(name);
}

const ACRONYMS: ReadonlySet<string> = new Set(["ddp", "fsdp", "gpu", "nccl"]);

/** What to call a table where room is short: its analysis' name in words. */
export function shortTitle(name: string): string {
  const words = name.replaceAll("_", " ").trim().split(" ").map((word) => (ACRONYMS.has(word) ? word.toUpperCase() : word)).join(" ");
  return words === "" ? name : words.charAt(0).toUpperCase() + words.slice(1);
}

export function baseName(path: string): string {
  return path.split(/[\\/]/).filter(Boolean).at(-1) ?? path;
}

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

/** Words that are not written in lower case. */
const PROPER: ReadonlyMap<string, string> = new Map([
  ...["cpu", "ddp", "fsdp", "gc", "gpu", "id", "json", "mfu", "nccl", "numa", "p2p", "sm"].map((word): [string, string] => [word, word.toUpperCase()]),
  ["flops", "FLOPs"], ["synchronisation", "synchronization"], ["std", "standard deviation"], ["tflops", "TFLOP/s"],
]);

/** A snake_case name in words; empty if it has none. */
function inWords(name: string): string {
  const words = name.replaceAll("_", " ").trim().split(" ").map((word) => PROPER.get(word) ?? word).join(" ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The title of a column: `Exposed communication` for `exposed_communication_ns`. The cells show the unit. */
export function columnLabel(column: string): string {
  return inWords(column.replace(/_ns$/, "").replace(/tflops_per_s$/, "tflops")) || column;
}

/** Identifiers of code in a sentence: kept as they are, so that they can be searched for. */
const CODE = /::|\b[a-z]+[A-Z]|_\w*\d|\d\w*_|__/;

/** The label of a fact: plain words, except for identifiers of code. */
export function factLabel(name: string): string {
  return CODE.test(name) ? name : columnLabel(name);
}

/** A short title for an analysis' table: its name in words. */
export function shortTitle(name: string): string {
  return inWords(name) || name;
}

export function baseName(path: string): string {
  return path.split(/[\\/]/).filter(Boolean).at(-1) ?? path;
}

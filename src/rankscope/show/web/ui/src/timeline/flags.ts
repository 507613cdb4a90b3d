/** Notes that a reader puts at instants: part of the address, so that a link, also into a report, carries them. */

import { escaped, unescaped } from "./lists.ts";

export interface Flag {
  /** ns since the run's origin. */
  readonly at: number;
  readonly text: string;
}

const MOST = 50;
const LONGEST = 200;

/** `1200~slow%20here!5000~` : parts are escaped, so that a note may hold any character. */
export function writeFlags(flags: readonly Flag[]): string {
  return flags.map(({ at, text }) => `${Math.round(at)}~${escaped(text)}`).join("!");
}

export function readFlags(text: string): Flag[] {
  const found: Flag[] = [];
  for (const part of text.split("!").slice(0, MOST)) {
    const [at = "", note = ""] = part.split("~");
    if (!/^-?\d{1,16}$/.test(at)) continue;
    found.push({ at: Number(at), text: unescaped(note).slice(0, LONGEST) });
  }
  return found.sort((a, b) => a.at - b.at);
}

/** The flags with one more, changed, or without one (a note of null) at an instant. */
export function withFlag(flags: readonly Flag[], at: number, text: string | null): Flag[] {
  const others = flags.filter((flag) => flag.at !== at);
  return text === null ? others : [...others, { at, text: text.slice(0, LONGEST) }].sort((a, b) => a.at - b.at).slice(0, MOST);
}

/** What a step would take with some scenarios: answers of `api/whatif`, and scenarios as options of `rankscope whatif`. */

export type Lane = "host" | "device" | "collectives";
export type Kind = "data_loading" | "allocation" | "host" | "compute" | "copies" | "waiting" | "transfer";

/** One step of some ranks, a column each: intervals since it began. */
export interface Lanes {
  readonly duration_ns: number;
  readonly rank: readonly number[];
  readonly lane: readonly Lane[];
  readonly kind: readonly Kind[];
  readonly start_ns: readonly number[];
  readonly end_ns: readonly number[];
  /** How much of the interval is of its kind. */
  readonly busy_ns: readonly number[];
}

export interface Scenario {
  readonly option: string;
  readonly name: string;
}

export interface Answer {
  readonly options: readonly string[];
  readonly names: readonly string[];
  /** The mean step: recorded, replayed, and with the scenarios; the last is null where the replay is not judged. */
  readonly recorded_ns: number;
  readonly replayed_ns: number;
  readonly step_ns: number | null;
  readonly explained: number;
  readonly judged: boolean;
  readonly note: string | null;
  /** The step that is drawn; null where steps are not marked. */
  readonly step: number | null;
  readonly steps: number;
  /** The ranks that are drawn, of so many. */
  readonly ranks: readonly number[];
  readonly of: number;
  readonly recorded: Lanes;
  /** Null where a report has no room for it. */
  readonly replayed: Lanes | null;
  readonly offers: { readonly ranks: string; readonly components: readonly string[]; readonly scenarios: readonly Scenario[] };
}

/** What all answers of a report have in common is in the first. */
export type EmbeddedAnswers = readonly [Answer, ...Pick<Answer, "options" | "names" | "step_ns" | "replayed">[]];

/** Ranks that become like their peers in a component; in all of them where it is empty. */
export interface Fixed {
  readonly ranks: readonly number[];
  readonly component: string;
}

const PREFIX = "whatif RUN ";
const RANKS = /^--fix rank=([\d,-]+)(?::(\w+))?$/;

/** `whatif RUN --fix rank=3` as `--fix rank=3`. */
export function optionOf(command: string): string {
  return command.startsWith(PREFIX) ? command.slice(PREFIX.length) : command;
}

/** `--fix rank=3 --overlap` as its options. */
export function optionsIn(text: string): string[] {
  return text.split(/\s+(?=--)/).map((option) => option.trim()).filter((option) => option !== "");
}

/** The ranks that an option makes like their peers; null for another option. */
export function fixedBy(option: string): Fixed | null {
  const found = RANKS.exec(option);
  return found ? { ranks: numbersIn(found[1] ?? ""), component: found[2] ?? "" } : null;
}

export function fixOption({ ranks, component }: Fixed): string {
  return `--fix rank=${[...ranks].sort((a, b) => a - b).join(",")}${component === "" ? "" : `:${component}`}`;
}

/** `0-2,5` as numbers; what is none of these is left out. */
export function numbersIn(text: string, most = 4096): number[] {
  const found = new Set<number>();
  for (const part of text.split(",")) {
    const range = /^\s*(\d{1,7})(?:\s*-\s*(\d{1,7}))?\s*$/.exec(part);
    if (!range) continue;
    for (let rank = Number(range[1]); rank <= Number(range[2] ?? range[1]) && found.size < most; rank++) found.add(rank);
  }
  return [...found].sort((a, b) => a - b);
}

/** The same scenarios in one way of writing: ranks of a component together, in order. */
export function normal(options: readonly string[]): string[] {
  const fixed = new Map<string, Set<number>>();
  const others = new Set<string>();
  for (const option of options) {
    const ranks = fixedBy(option);
    if (!ranks) others.add(option);
    else fixed.set(ranks.component, new Set([...(fixed.get(ranks.component) ?? []), ...ranks.ranks]));
  }
  return [...[...fixed].map(([component, ranks]) => fixOption({ ranks: [...ranks], component })), ...others].sort();
}

/** A report's answer to some scenarios; null where it has none. */
export function embeddedAnswer(answers: EmbeddedAnswers, options: readonly string[]): Answer | null {
  const wanted = normal(options).join(" ");
  const found = answers.find((each) => normal(each.options).join(" ") === wanted);
  return found ? { ...answers[0], ...found } : null;
}

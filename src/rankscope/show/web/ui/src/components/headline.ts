/** The overview's four cards: a number and a sentence each. */
import type { Diagnosis } from "../data/payload.ts";
import type { Table } from "../data/table.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import { exactCell, formatDuration, formatRatio, MISSING } from "../format/units.ts";
import { sentence } from "./answer.ts";
import { h, styled, type Child } from "./dom.ts";

interface Card {
  readonly id: string;
  readonly title: string;
  readonly value: number | null;
  readonly text: string;
  readonly exact: string | null;
  readonly sentence: Child;
  readonly doc: string;
  /** A share to draw, where the number is one or comes with one. */
  readonly share?: { value: number | null; tone: "good" | "communication" };
  /** The text is words instead of a number. */
  readonly isWords?: boolean;
  /** Further numbers of the sentence, by name. */
  readonly second?: Readonly<Record<string, number | null>>;
}

/** The diagnosis is null while the rules have not run. */
export function headline(overview: Table, diagnosis: Diagnosis | null): HTMLElement {
  const number = (column: string): number | null => overview.number(0, column);
  const doc = (column: string): string => overview.meta(column).doc;
  const [step, mean, overlap, exposed, share] = [number("step_ns"), number("mean_step_ns"), number("overlap_ratio"), number("exposed_communication_ns"), number("exposed_share")];
  const [steps, averaged, ranks, communication] = [number("steps"), number("averaged_steps"), number("ranks"), number("communication_ns")];
  const usual = steps !== null && averaged !== null && averaged < steps ? ", without cold steps" : "";
  const silent = communication === 0 && step !== null ? "No communication in these traces." : "Not recorded in these traces.";
  const cards: Card[] = [
    {
      id: "step-time", title: "Step time", value: step, text: step === null ? MISSING : formatDuration(step), exact: exactCell(step, "ns"), doc: doc("step_ns"),
      sentence: step === null ? "Not recorded in these traces." : steps === 0 ? `No steps are marked: the recorded span${ranks === 1 ? "" : ", on the slowest rank"}.`
        : `${steps === 1 ? "The only step in the traces" : steps === null ? "Median over the steps" : `Median over ${counted(steps, "step")}`}${ranks === 1 ? "" : steps === 1 ? ", on its slowest rank" : ", taking the slowest rank of each"}.`,
    },
    {
      id: "overlap", title: "Overlap", value: overlap, text: overlap === null ? MISSING : formatRatio(overlap), exact: overlap === null ? null : String(overlap), doc: doc("overlap_ratio"),
      sentence: overlap === null ? silent : overlap === 0 ? "No communication overlaps with compute." : `Share of communication that overlaps with compute${steps === 0 || steps === null ? "" : ", in the same steps"}.`,
      share: { value: overlap, tone: "good" },
    },
    {
      id: "exposed-communication", title: "Exposed communication", value: step === null ? null : exposed, text: exposed === null || step === null ? MISSING : formatDuration(exposed), exact: exactCell(exposed, "ns"), doc: doc("exposed_communication_ns"),
      sentence: exposed === null || step === null ? (step === null ? "Not recorded in these traces." : silent) : exposed === 0 && communication === 0 ? silent
        : share === null || mean === null ? "Communication that does not overlap with compute, including waiting for other ranks." : `${formatRatio(share)} of ${mean === step ? "the step" : `the mean step (${formatDuration(mean)}${usual})`}, including waiting for other ranks.`,
      share: { value: share, tone: "communication" }, second: { share, of: mean },
    },
    stragglerCard(diagnosis),
  ];
  return h("div", { class: "cards" }, cards.map(card));
}

/** The diagnosis's verdict on the ranks. */
function stragglerCard(diagnosis: Diagnosis | null): Card {
  const about = { id: "stragglers", exact: null, doc: "whether a rank delays the others" };
  if (!diagnosis) return { ...about, title: "Straggler", value: null, text: MISSING, sentence: "The ranks are being compared." };
  const { state, ranks, label, sentence: verdict } = diagnosis.stragglers;
  const late = state === "straggler";
  return {
    ...about, title: ranks.length > 1 ? "Stragglers" : "Straggler", value: ranks[0] ?? null,
    text: late ? `${ranks.length === 1 ? "Rank" : "Ranks"} ${formatRanks(ranks, 24)}` : state === "one-rank" ? MISSING : label.charAt(0).toUpperCase() + label.slice(1),
    sentence: sentence(verdict), isWords: !late,
  };
}

function card(about: Card): HTMLElement {
  const { value, share, second } = about;
  return h("section", { class: "card", "aria-labelledby": `card-${about.id}`, title: about.doc || null },
    h("h3", { id: `card-${about.id}` }, about.title),
    h("p", {
      class: `figure-value${value === null ? " missing" : ""}${about.isWords === true ? " words" : ""}`, "data-testid": `headline-${about.id}`, "data-value": value ?? "",
      title: about.exact, ...Object.fromEntries(Object.entries(second ?? {}).map(([name, number]) => [`data-${name}`, number ?? ""])),
    }, about.text),
    share && share.value !== null
      ? h("div", { class: "meter", "aria-hidden": "true" }, styled(h("span", { class: share.tone }), { width: `${Math.min(100, Math.max(0, 100 * share.value)).toFixed(2)}%` }))
      : null,
    h("p", { class: "sentence" }, about.sentence));
}

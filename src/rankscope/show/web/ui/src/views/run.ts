import { answer } from "../components/answer.ts";
import { inline } from "../components/doc_text.ts";
import { h, named, type Child } from "../components/dom.ts";
import { findingItems } from "../components/findings.ts";
import { tables } from "../components/tables.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import { present, type View, type ViewContext } from "./view.ts";

/** Findings about lost, doubtful or missing data in the files. */
const LOSSES = /^(trace|device|unknown|archive|link|rank|ranks|run|runs|window|missing|clock|clocks|capture|not|traces|profiler|unmatched|incomplete|ambiguous)-/;

/** Longer lists of names flow like text. */
const IN_A_COLUMN = 6;
/** Of more names the first and the last are shown, the others on request. */
const AT_ONCE = 24;

export const run: View = {
  id: "run",
  title: "Run",
  group: "run",
  question: "What was read, what is missing, and what did recording cost?",
  answers: ["account", "recording", "clock", "placement"],
  shows: [],
  wants: ["job_kind", "account", "recording", "clock"],
  tables: ["job_kind", "account", "recording", "clock", "devices"],
  render(context) {
    const { run: about, generatedBy, analyses, findings } = context.payload;
    const list = (all: readonly string[]): Child => {
      const names = [...new Set(all)];
      const [first, last] = [names[0], names.at(-1)];
      if (first === undefined || last === undefined) return "not recorded";
      const items = h("ul", { class: names.length > IN_A_COLUMN ? "flowing" : "plain" }, names.map((name) => h("li", {}, named(name))));
      return names.length <= AT_ONCE ? items : h("details", { class: "notes" }, h("summary", {}, `${names.length}: `, named(first, 40), " … ", named(last, 40)), items);
    };
    const lines: [string, Child][] = [
      ["Run id", about.id === null ? "not recorded" : named(about.id)],
      ["Read from", about.path === "" ? "not recorded" : named(about.path, 400)],
      ["Command", about.command === null ? "not recorded" : h("code", { class: "command" }, named(about.command.join(" "), 2000))],
      ["World size", about.world_size === null ? "not recorded" : String(about.world_size)],
      ["Ranks read", about.ranks.length === 0 ? "none" : `${formatRanks(about.ranks, 60)} (${counted(about.ranks.length, "rank")})`],
      ["Ranks missing", about.missing_ranks.length === 0 ? "none" : formatRanks(about.missing_ranks, 60)],
      ["Steps", about.steps.length === 0 ? "none marked" : formatRanks(about.steps, 60)],
      ["Hosts", list(about.hosts)],
      ["Devices", list(about.devices)],
      ["Traces written by", list(about.written_by)],
      [context.served?.live ? "Served by" : "Report written by", named(generatedBy)],
    ];
    const lost = findings.filter(({ id }) => LOSSES.test(id));
    return present([
      h("dl", { class: "run-facts" }, lines.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("section", { "aria-labelledby": "lost-title" }, h("h3", { id: "lost-title" }, "Missing or doubtful data"),
        lost.length > 0 ? findingItems(context, lost) : h("p", { class: "quiet-box" }, "None: every file was read completely, and no expected rank is missing.")),
      part(context, "job_kind", "Kind of job", "The traces do not tell whether this is training or inference."),
      part(context, "recording", "Recording and its overhead", "No rank manifest next to the traces, so the recording overhead is unknown. `rankscope.Profiler` and `rankscope run` write manifests."),
      part(context, "clock", "Clocks", "Only one rank, or no shared collectives: the clocks cannot be compared."),
      tables(context, [{ name: "job_kind" }, { name: "account" }, { name: "recording" }, { name: "clock" }, { name: "devices" }]),
      h("section", { "aria-labelledby": "analyses-title" }, h("h3", { id: "analyses-title" }, "All analyses"),
        h("ul", { class: "plain columns" }, [...analyses].map(([name, analysis]) => h("li", {}, h("a", { href: context.router.href(context.homeOf(name)) }, named(name.replaceAll("_", " "), 40)), h("small", {}, " ", named(analysis.title, 120)))))),
    ]);
  },
};

function part(context: ViewContext, name: string, title: string, none: string): HTMLElement {
  const headline = context.payload.analyses.get(name)?.headline;
  return h("section", { "aria-labelledby": `about-${name}` }, h("h3", { id: `about-${name}` }, title), headline ? answer(`part-${name}`, headline) : h("p", { class: "quiet-box" }, inline(none)));
}

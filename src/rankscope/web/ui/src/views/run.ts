import { h, named, type Child } from "../components/dom.ts";
import { counted, formatRanks } from "../format/ranks.ts";
import type { View, ViewContext } from "./view.ts";

export const run: View = {
  id: "run",
  title: "Run",
  question: "What was read, and what is missing?",
  shows: [],
  render(context) {
    const { run: about, generatedBy, analyses } = context.payload;
    const list = (names: readonly string[]): Child => (names.length === 0 ? "not recorded" : h("ul", { class: "plain" }, [...new Set(names)].map((name) => h("li", {}, named(name)))));
    const lines: [string, Child][] = [
      ["Run id", about.id === null ? "not recorded" : named(about.id)],
      ["Read from", about.path === "" ? "not recorded" : named(about.path, 400)],
      ["Command", about.command === null ? "not recorded" : h("code", { class: "command" }, named(about.command.join(" "), 2000))],
      ["World size", about.world_size === null ? "not recorded" : String(about.world_size)],
      ["Ranks read", about.ranks.length === 0 ? "none" : `${formatRanks(about.ranks, 60)} (${counted(about.ranks.length, "rank")})`],
      ["Ranks missing", about.missing_ranks.length === 0 ? "none" : formatRanks(about.missing_ranks, 60)],
      ["Steps", about.steps.length === 0 ? "no step is marked" : formatRanks(about.steps, 60)],
      ["Hosts", list(about.hosts)],
      ["Devices", list(about.devices)],
      ["Written by", named(generatedBy)],
      ["Analyses", h("ul", { class: "plain" }, [...analyses].map(([name, analysis]) => h("li", {}, h("a", { href: context.router.href(viewOf(context, name)) }, named(analysis.title)))))],
    ];
    return [h("dl", { class: "run-facts" }, lines.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))];
  },
};

const OWN_VIEWS: Readonly<Record<string, string>> = {
  overview: "overview", device_time: "ranks", step_time: "steps", collectives: "collectives", collective_summary: "collectives", kernels: "kernels",
};

function viewOf(_context: ViewContext, name: string): string {
  return Object.hasOwn(OWN_VIEWS, name) ? OWN_VIEWS[name] ?? name : name;
}

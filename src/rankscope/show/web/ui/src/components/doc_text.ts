/** A docstring as text: paragraphs, indented blocks verbatim, and `code`. Nothing in it is read as markup. */
import { h, type Child } from "./dom.ts";

export function paragraphs(doc: string): string[] {
  return dedent(doc).split(/\n\s*\n/).map((part) => part.replace(/\s+$/, "")).filter((part) => part.trim() !== "");
}

/** The first sentence or paragraph: the caption; the rest follows on request. */
export function docParts(doc: string): { lead: string; rest: string[] } {
  const [lead = "", ...rest] = paragraphs(doc);
  return { lead: lead.replace(/\s+/g, " ").trim(), rest };
}

export function docNodes(parts: readonly string[]): HTMLElement[] {
  return parts.map((part) => {
    const lines = part.split("\n");
    const asItStands = lines.some((line) => /^(\s{2,}|\s*[-*|] )/.test(line)) || /^```/.test(part);
    if (!asItStands) return h("p", {}, inline(part.replace(/\s+/g, " ")));
    return h("pre", { class: "doc", tabindex: "0", role: "region", "aria-label": "Definition" }, part.replace(/^```\w*\n?|```$/gm, ""));
  });
}

export function inline(text: string): Child[] {
  return text.split(/(``[^`]+``|`[^`]+`)/).map((part) => {
    const code = /^(`+)([^`]+)\1$/.exec(part)?.[2];
    return code === undefined ? part : h("code", {}, code);
  });
}

function dedent(doc: string): string {
  const lines = doc.replaceAll("\t", "    ").split("\n");
  const depth = lines.slice(1).filter((line) => line.trim() !== "").map((line) => line.search(/\S/));
  const margin = depth.length > 0 ? Math.min(...depth) : 0;
  return lines.map((line, index) => (index === 0 ? line.trimStart() : line.slice(margin))).join("\n").trim();
}

/**
 * Folds the built script and style into the HTML page, with a content security policy that names both by their hash.
 *
 * The page must open from `file://` with nothing next to it and must not be able to load or send anything. So the policy
 * starts from `default-src 'none'` and allows exactly the one script and the one style that were built. The payload
 * stands in an `application/json` block, which is data and never runs.
 */
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

export const MARKER = `<script type="application/json" id="rankscope-data">/*RANKSCOPE_DATA*/</script>`;

interface Options {
  /** Name of the page to write. */
  page: string;
  /** Name of the file that collects the licenses of what was bundled. */
  licenses: string;
}

export function singleFile({ page, licenses }: Options): Plugin {
  const packages = new Set<string>();
  return {
    name: "rankscope-single-file",
    apply: "build",
    enforce: "post",
    generateBundle(_options, bundle) {
      let html = "";
      let script = "";
      let style = "";
      for (const [name, part] of Object.entries(bundle)) {
        if (part.type === "chunk") {
          script += part.code;
          for (const id of Object.keys(part.modules)) {
            const folder = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replace(/\0/g, ""))?.[1];
            if (folder) packages.add(folder);
          }
        } else if (name.endsWith(".html")) html = String(part.source);
        else if (name.endsWith(".css")) style += String(part.source);
        else this.error(`${name}: a page in one file cannot refer to another`);
        delete bundle[name];
      }
      this.emitFile({ type: "asset", fileName: page, source: fold(html, script.trim(), style.trim()) });
      this.emitFile({ type: "asset", fileName: licenses, source: licenseText([...packages].sort(byName)) });
    },
  };
}

/** The whole page as one text; throws where something in it would break out of its element or reach outside. */
export function fold(html: string, script: string, style: string): string {
  if (/<\/script|<!--/i.test(script)) throw new Error("the bundled script holds '</script' or '<!--'");
  if (/<\/style/i.test(style)) throw new Error("the bundled style holds '</style'");
  if (script.includes("/*RANKSCOPE_DATA*/")) throw new Error("the bundled script holds the payload marker");
  if (/url\(|@import/i.test(style)) throw new Error("the bundled style refers to another file");
  const policy = [
    "default-src 'none'",
    `script-src '${sha256(script)}'`,
    `style-src '${sha256(style)}'`,
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
  const folded = html
    .replace(/\s*<script type="module"[^>]*src="[^"]*"[^>]*><\/script>/, "")
    .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
    .replace("%CSP%", () => policy)
    .replace("</head>", () => `  <style>${style}</style>\n</head>`)
    .replace("</body>", () => `<script type="module">${script}</script>\n</body>`);
  if (folded.split(MARKER).length !== 2) throw new Error("the page must hold the payload marker exactly once");
  if (/<(script|link|img|iframe)[^>]*\s(src|href)="(?!data:)/i.test(folded.replace(script, ""))) {
    throw new Error("the page still refers to another file");
  }
  return folded;
}

function sha256(text: string): string {
  return `sha256-${createHash("sha256").update(text, "utf8").digest("base64")}`;
}

function byName(a: string, b: string): number {
  const [x, y] = [packageName(a), packageName(b)];
  return x < y ? -1 : x > y ? 1 : 0;
}

function packageName(folder: string): string {
  return folder.slice(folder.lastIndexOf("node_modules/") + "node_modules/".length);
}

function licenseText(folders: string[]): string {
  const parts = folders.map((folder) => {
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Record<string, string>;
    const texts = readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isFile() && /^(licen[cs]e|notice)/i.test(entry.name)).map((entry) => entry.name).sort()
      .map((name) => readFileSync(join(folder, name), "utf8").replace(/\r\n/g, "\n").trim());
    return [`${about.name} ${about.version} (${about.license})`, ...texts].join("\n\n");
  });
  const rule = `\n\n${"-".repeat(100)}\n\n`;
  return `The built page holds code of these packages.${rule}${parts.join(rule)}\n`;
}

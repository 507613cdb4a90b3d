import { defineConfig } from "vitest/config";
import { singleFile } from "./plugins/single_file.ts";

/** One HTML file out: `show/report/static/report.html`. The versions are pinned, so a rebuild gives the same bytes. */
export default defineConfig({
  base: "./",
  plugins: [singleFile({ page: "report.html", licenses: "THIRD_PARTY_LICENSES.txt" })],
  build: {
    outDir: "../../report/static",
    emptyOutDir: false, // static/ also holds .gitattributes
    target: "es2022",
    sourcemap: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1000,
    reportCompressedSize: false,
    modulePreload: false,
  },
  // Time-outs are for what hangs: a machine that others use may take long for anything.
  test: { environment: "node", include: ["tests/**/*.test.ts"], testTimeout: 240_000, hookTimeout: 240_000 },
});

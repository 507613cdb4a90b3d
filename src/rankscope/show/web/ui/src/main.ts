/** Starts the page: theme, data, shell; or shows why there is no data. */
import "./theme/theme.css";
import "./theme/page.css";
import "./theme/charts.css";
import "./theme/timeline.css";
import "./theme/calls.css";
import "./theme/overview.css";
import "./theme/query.css";
import "./theme/whatif.css";
import { parseHash } from "./app/router.ts";
import { showPage } from "./app/shell.ts";
import { errorState } from "./components/notes.ts";
import { h } from "./components/dom.ts";
import { ApiError } from "./data/api.ts";
import { open } from "./data/open.ts";
import { PayloadError } from "./data/validate.ts";
import { startTheme } from "./theme/theme.ts";

async function start(): Promise<void> {
  const root = document.getElementById("app");
  if (!root) return;
  startTheme();
  const run = parseHash(location.hash).params.get("run") ?? null;
  try {
    const { payload, served } = await open(run);
    showPage(root, payload, served);
    root.dataset["ready"] = "true";
    // Another run is another page: everything that was fetched belongs to this one.
    addEventListener("hashchange", () => {
      if (served?.live && (parseHash(location.hash).params.get("run") ?? served.shown) !== (run ?? served.shown)) location.reload();
    });
  } catch (error) {
    const known = error instanceof PayloadError;
    const what = known || error instanceof ApiError ? error.message : "The page failed to render this report.";
    const advice = known ? error.advice : error instanceof ApiError ? error.hint
      : `This is a bug in rankscope, not in your run. Please report it. (${error instanceof Error ? error.message.slice(0, 300) : "unknown"})`;
    root.replaceChildren(h("main", { class: "alone" }, errorState(what, advice)));
    root.dataset["ready"] = "error";
    addEventListener("hashchange", () => {
      if ((parseHash(location.hash).params.get("run") ?? null) !== run) location.reload();
    });
  }
}

void start();

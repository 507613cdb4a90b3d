/** Starts the page: the colours, the data, the frame; or says why there is nothing to show. */
import "./theme/theme.css";
import "./theme/page.css";
import "./theme/charts.css";
import { showPage } from "./app/shell.ts";
import { errorState } from "./components/notes.ts";
import { h } from "./components/dom.ts";
import { EmbeddedSource, type Source } from "./data/source.ts";
import { PayloadError } from "./data/validate.ts";
import { startTheme } from "./theme/theme.ts";

async function start(source: Source): Promise<void> {
  const root = document.getElementById("app");
  if (!root) return;
  startTheme();
  try {
    showPage(root, await source.load());
    root.dataset["ready"] = "true";
  } catch (error) {
    const known = error instanceof PayloadError;
    const what = known ? error.message : "The page failed while it drew this report.";
    const advice = known ? error.advice : `This is a fault of rankscope, not of the run: please report it. (${error instanceof Error ? error.message.slice(0, 300) : "unknown"})`;
    root.replaceChildren(h("main", { class: "alone" }, errorState(what, advice)));
    root.dataset["ready"] = "error";
  }
}

void start(new EmbeddedSource());

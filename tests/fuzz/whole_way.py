"""A run taken the whole way: read, analyzed, diagnosed, shown in the terminal, in a report, and asked for by the page.

`problems_of` lists what went wrong with it. A trace may be as absurd as it likes: what cannot be read or computed
becomes a finding with a reason, and a reason is a sentence, never the name of a Python exception.
"""

from __future__ import annotations

import io
import json
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from tests.show.report.reading import inflated, read_report
from tests.show.web.asking import serving

from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run, open_run
from rankscope.errors import RankscopeError
from rankscope.results import NOT_ANALYZED
from rankscope.show.report.html_report import write_report
from rankscope.show.report.summary import summary
from rankscope.show.web.params import MAX_NS

_INTERNAL = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception|Panic|Iteration)\b: ?.{0,300}", re.DOTALL)


class Problems(list[str]):
    """What went wrong, a line each."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Notes an exception that is not rankscope's own."""
        try:
            yield
        except RankscopeError as error:
            self.text(name, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Polars is no Exception
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/rankscope/" in frame.filename]
            where = own[-1] if own else where
            self.append(
                f"{name}: {type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.name})"
            )

    def text(self, name: str, text: str) -> None:
        """Notes a text that shows an exception's name."""
        found = _INTERNAL.search(text)
        if found is not None:
            self.append(f"{name}: {text[:60]} … {found.group()[:160]}")


def problems_of(source: Path, *, page: bool = True, anonymize: bool = False) -> list[str]:
    """What goes wrong with a run on its whole way."""
    found = Problems()
    run = None
    with found.stage("open"):
        run = open_run(source, executor="serial").load()
    if run is None:
        return found
    with found.stage("analyses"):
        run.attempt(*all_analyses())
    with found.stage("rules"):
        for finding in (*run.diagnose(), *run.findings):
            shown = json.dumps(finding.to_json(), allow_nan=False)
            if finding.id in (NOT_ANALYZED, "not-diagnosed", "rank-not-drawn"):
                found.text(finding.id, f"{finding.title} {shown}")
    with found.stage("summary"):
        Console(file=io.StringIO(), width=80).print(summary(run))
    with found.stage("report"):
        _check_report(run, found, anonymize)
    if page:
        with found.stage("page"):
            _check_page(source, found)
    return list(dict.fromkeys(found))


def _check_report(run: Run, found: Problems, anonymize: bool) -> None:
    value, blocks = read_report(write_report(run, anonymize=anonymize))
    if not value["run"]["ranks"] or "timeline" not in blocks:
        found.append("report: no ranks or no timeline")
    for sentence in json.loads(inflated(blocks["timeline"]))["left_out"]:
        found.text("report", sentence)


def _check_page(source: Path, found: Problems) -> None:
    server = serving(source)
    state = server.ask("/api/state").json()
    if state["phase"] != "ready":
        found.append(f"page: {state['phase']}: {state['error']}")
        return

    def ask(name: str, **params: Any) -> Any:
        answer = server.ask(f"/api/{name}?{urlencode(params)}")
        if answer.status >= 500 or (answer.status != 200 and name != "event"):
            found.append(f"page: {name}: {answer.status} {answer.body[:200]!r}")
            return None
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.body

    layout = ask("timeline")
    ask("names", **{"from": 0})
    ask("heat")
    for name, analysis in (ask("summary") or {"analyses": {}})["analyses"].items():
        if analysis["state"] == "ready":
            ask(f"table/{name}")
    if layout is None:
        return
    lanes, span = layout["lanes"], layout["span_ns"]
    whole = {"from": 0, "to": min(span, MAX_NS - 1) + 1}
    full = [lane for lane, events in enumerate(lanes["events"]) if events][:8]
    if full:
        chosen = ",".join(map(str, full))
        for level in {0, layout["levels"] // 2, layout["levels"] - 1}:
            ask("tiles", level=level, first=0, bins=64, lanes=chosen)
        for lane in full[:4]:
            for row in {0, lanes["events"][lane] - 1}:
                ask("event", lane=lane, row=row)
        ask("events", lanes=chosen, **whole)
    ask("range", **whole)
    for by in ("operators", "frames", "modules"):
        ask("calls", by=by, **whole)
    ask("search", q="a")
    for row in layout["ranks"]:
        if row["tracks"][1]:
            ask("counters", rank=row["rank"], **whole)

"""Tools about jobs without traces, or before them: why one hangs, the state of a watched one; and the guide.

In: the directory of a job and arguments. Out: answers, as `rankscope hang` and `rankscope watch` give them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from rankscope.answers.hang import read as read_hang
from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import JUDGED_STEPS, read_status
from rankscope.answers.watch.status_json import as_json
from rankscope.show.agents.answers import Answer
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.runs import AgentRuns
from rankscope.show.agents.tool import LIMIT, OFFSET, Tool, column, part_of

FOLDER = Argument(
    "folder", "text", "Directory of the job: ROOT or ROOT/sub/dir, as list_runs names jobs and roots.", required=True
)


def guide() -> str:
    """How to use the tools, and what the numbers mean."""
    return (files("rankscope.show.agents") / "SKILL.md").read_text(encoding="utf-8")


def _guide(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    return Answer({"guide": [line for line in guide().splitlines() if line]}, sources=("rankscope mcp --guide",))


def _hang(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    folder = runs.roots.checked(given["folder"])
    verdict = dict(read_hang(folder).to_json())
    ranks = verdict.pop("ranks")
    assert isinstance(ranks, tuple | list)
    columns = (
        column("rank", "", "the rank; the culprits first"),
        column("cause", "", "why it is there; communication: it waits for others"),
        column("evidence", "", "what shows that"),
        column("stack", "", "of the training loop, the innermost frame first"),
    )
    sources = ("rankscope hang, docs/hang.md", f"command: rankscope hang {shlex.quote(str(folder))}")
    notes = ["A rank without a dump is unknown: it is not known to have arrived, nor to be missing."]
    return Answer(verdict, part_of(list(ranks), columns, given), sources, notes=notes)


def _watch(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    folder = runs.roots.checked(given["folder"])
    state = dict(as_json(read_status(folder, WatchLogs(folder), given["steps"])))
    ranks = state.pop("ranks")
    assert isinstance(ranks, list)
    columns = (
        column("rank", "", "the rank"),
        column("last_step", "", "its last complete step"),
        column("state", "", "running, silent, ended or dead"),
    )
    page = {"command": f"rankscope serve {shlex.quote(str(folder))}", "fragment": "#/watch"}
    sources = ("rankscope watch, docs/watch.md",)
    return Answer(state, part_of(ranks, columns, given), sources, page)


GUIDE = Tool("guide", "How to use these tools, and what the numbers mean. Read it once.", (), _guide, opens_runs=False)
HANG = Tool(
    "hang",
    "Why a job hangs: the collective that does not complete, the ranks that did not arrive, where they are and why, "
    "from the dumps in its directory.",
    (FOLDER, OFFSET, LIMIT),
    _hang,
    opens_runs=False,
)
WATCH = Tool(
    "watch",
    "The state of a watched job from its log, without traces: step time, ranks, stragglers and since when, long steps.",
    (
        FOLDER,
        Argument("steps", "integer", "How many of the latest steps to evaluate.", JUDGED_STEPS, low=1, high=20_000),
        OFFSET,
        LIMIT,
    ),
    _watch,
    opens_runs=False,
)

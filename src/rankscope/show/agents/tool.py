"""What a tool is, and the arguments that several have.

In: a declaration. Out: a tool that can be listed and called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.show.agents.answers import Answer, Rows
from rankscope.show.agents.arguments import Argument, read_arguments
from rankscope.show.agents.runs import AgentRuns

MAX_ROWS = 500
RUN = Argument("run", "text", "Key of the run, from list_runs. Default: the latest run.")
OFFSET = Argument("offset", "integer", "Number of the first row to return.", 0, high=1 << 40)
LIMIT = Argument("limit", "integer", "Most rows to return.", 50, low=1, high=MAX_ROWS)


@dataclass(frozen=True)
class Rest:
    """What is left of a call once it needs no run any more, so that other calls may use the runs.

    Attributes:
        finish: computes the answer.
    """

    finish: Callable[[], Answer]


@dataclass(frozen=True)
class Tool:
    """A tool for agents. All are read-only.

    Attributes:
        name: in snake case.
        doc: what it answers, for the agent.
        arguments: what it takes.
        answer: computes the answer from checked arguments, or as much of it as needs a run.
        opens_runs: whether it reads runs; the others are answered while runs are read.
    """

    name: str
    doc: str
    arguments: tuple[Argument, ...]
    answer: Callable[[AgentRuns, Mapping[str, Any]], Answer | Rest]
    opens_runs: bool = True

    def call(self, runs: AgentRuns, given: Mapping[str, Any]) -> Answer | Rest:
        """The answer to a call.

        Raises:
            RankscopeError: an argument is not valid, or there is no answer.
        """
        return self.answer(runs, read_arguments(self.arguments, given))


def part_of(rows: Sequence[Any], columns: Sequence[Mapping[str, str]], given: Mapping[str, Any]) -> Rows:
    """The rows that the arguments `offset` and `limit` choose."""
    offset = given["offset"]
    return Rows(columns, rows[offset : offset + given["limit"]], len(rows), offset)


def column(name: str, unit: str, doc: str) -> dict[str, str]:
    """The description of a column or field."""
    return {"name": name, "unit": unit, "doc": doc}

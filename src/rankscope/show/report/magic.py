"""The magic `%rankscope` of IPython and Jupyter: a run, or one of its tables, by a line instead of calls.

In: the line after the magic. Out: a run, which shows its overview, or the result of an analysis.
"""

from __future__ import annotations

import shlex
from typing import Protocol

from rankscope.analyses import get_analysis
from rankscope.engine.pipeline import Run, open_run
from rankscope.errors import ConfigError
from rankscope.results import Analysis, Result, Value
from rankscope.show.report.notebook import run_html

_USAGE = "%rankscope RUN [ANALYSIS [--option VALUE]…]"
_runs: dict[str, Run] = {}


class Shell(Protocol):
    """The part of IPython's shell that is needed."""

    def register_magic_function(self, func: object, magic_kind: str, magic_name: str) -> None:
        """Add a magic."""
        ...


def register(shell: Shell) -> None:
    """Add `%rankscope` to a shell; `%load_ext rankscope` calls this."""
    Run.to_html = run_html
    shell.register_magic_function(rankscope_magic, "line", "rankscope")


def rankscope_magic(line: str) -> Run | Result:
    """`%rankscope RUN` shows a run's overview, `%rankscope RUN ANALYSIS --by shape` a table.

    The run is read once per session and path; `%rankscope RUN --again` reads it again.

    Raises:
        RankscopeError: the line is not understood.
    """
    try:
        path, *words = shlex.split(line)
    except ValueError as error:  # an open quote, or no word at all
        raise ConfigError("name a run: a directory, a trace, a glob or a URL", hint=_USAGE) from error
    if words == ["--again"]:
        _runs.pop(path, None)
        words = []
    if path not in _runs:
        _runs[path] = open_run(path)
    run = _runs[path]
    if not words:
        return run
    analysis = get_analysis(words[0])
    return run.analyze(analysis.name, parameters={analysis.name: _options(analysis, words[1:])})[analysis.name]


def _options(analysis: Analysis, words: list[str]) -> dict[str, Value]:
    """Options of an analysis, as on the command line."""
    flags = {parameter.name for parameter in analysis.parameters if parameter.kind == "flag"}
    options: dict[str, Value] = {}
    rest = iter(words)
    for word in rest:
        option, has_value, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--"):
            raise ConfigError(f"{word!r} is not an option", hint=_USAGE)
        if name in flags and not has_value:
            options[name] = True
            continue
        argument = value if has_value else next(rest, None)
        if argument is None:
            raise ConfigError(f"{option} needs a value", hint=_USAGE)
        options[name] = argument
    return options

"""Options of all analyses, and parameters of a single one.

In: values from Python, or text from a command line. Out: checked values, or an error that names the invalid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import polars as pl

from rankscope.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Options that apply to all analyses.

    Attributes:
        steps: the first and last step to look at, both included; None on either side leaves it open.
        communication: a regular expression of further kernel names that are communication.
    """

    steps: tuple[int | None, int | None] | None = None
    communication: str | None = None

    @property
    def named_steps(self) -> tuple[int, ...]:
        """The steps that the user typed (the only, first or last one): shown even if they are incomplete."""
        return tuple(dict.fromkeys(step for step in self.steps or () if step is not None))

    def keeps(self, step: pl.Expr) -> pl.Expr:
        """Whether a step number is among the chosen ones."""
        first, last = self.steps or (None, None)
        kept = step.is_not_null()
        if first is not None:
            kept = kept & (step >= first)
        if last is not None:
            kept = kept & (step <= last)
        return kept

    def chosen(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of the chosen steps, by their ``step``; all rows if no steps were chosen."""
        return rows if self.steps is None else rows.filter(self.keeps(pl.col("step")))


Value = str | int | bool | None
Kind = Literal["text", "regex", "number", "instant", "flag"]


@dataclass(frozen=True)
class Parameter:
    """An option of one analysis: `rankscope analyze NAME --match REGEX`, ``run.NAME(match=…)``.

    Attributes:
        name: in snake case; the command line writes it with dashes.
        doc: what it does, for help and docs.
        kind: `text`, `regex` (checked; ignores case), `number` (whole, not negative), `instant` (the same, ns on the
            run's clock; `Inputs.file_time` converts it), or `flag` (off by default).
        default: the default value; for a flag False.
        choices: the valid values; empty for any.
        of_reduce: whether only ``across_ranks`` uses it: the ranks' parts are then kept for other values of it.
    """

    name: str
    doc: str
    kind: Kind = "text"
    default: Value = None
    choices: tuple[str, ...] = ()
    of_reduce: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"a parameter's kind is one of {', '.join(get_args(Kind))}, not {self.kind!r}")

    @property
    def usage(self) -> str:
        """How the command line takes it: ``--by name|shape``, ``--match REGEX``."""
        takes = "|".join(self.choices) or {"regex": "REGEX", "number": "N", "instant": "NS", "flag": ""}.get(
            self.kind, "TEXT"
        )
        return f"--{self.name.replace('_', '-')} {takes}".rstrip()

    @property
    def annotation(self) -> Any:
        """The type of the Python argument."""
        kinds: dict[str, Any] = {"flag": bool, "number": int, "instant": int}
        kind = Literal[self.choices] if self.choices else kinds.get(self.kind, str)
        return kind | None if self.default is None else kind

    def read(self, given: Value) -> Value:
        """Convert a value, given by a program or as text on a command line, to the parameter's kind.

        Raises:
            ConfigError: it is not valid.
        """
        if given is None:
            return self.default
        if self.kind == "flag":
            return given not in (False, "false", "0", "")
        if self.kind in ("number", "instant"):
            if not str(given).isdecimal():
                raise ConfigError(f"{self.name}: {given!r} is not a number", hint="give a whole number, 0 or more")
            return int(given)
        text = str(given)
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name} cannot be {text!r}", hint=f"choose from: {', '.join(self.choices)}")
        if self.kind == "regex":
            try:
                re.compile(text)
                # Polars, which searches the names, supports neither look-around nor back-references.
                pl.Series([""]).str.contains(text)
            except (re.error, pl.exceptions.ComputeError) as error:
                reason = str(error).splitlines()[-1]
                raise ConfigError(
                    f"{self.name}: {text!r} is not a regular expression that can be used: {reason}",
                    hint="write one without look-around and back-references",
                ) from error
        return text


Parameters = Mapping[str, Value]

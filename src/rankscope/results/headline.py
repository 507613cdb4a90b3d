"""An analysis's answer in one sentence.

In: a sentence with placeholders, and their values. Out: a `Headline`, which each output formats in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from rankscope.results.finding import Evidence


@dataclass(frozen=True)
class Headline:
    """An analysis's answer in one sentence, with its values kept separate, so that each output can format them.

    Attributes:
        text: the sentence, with placeholders such as ``{name}``.
        values: the values, with their units. Names from traces belong here, never in the text.
    """

    text: str
    values: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, text: str, /, **values: tuple[int | float | str, str]) -> Headline:
        """Make one from values by name, each with its unit."""
        return cls(text, tuple(Evidence(name, value, unit) for name, (value, unit) in values.items()))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"text": self.text, "values": [{"name": e.name, "value": e.value, "unit": e.unit} for e in self.values]}


def greatest(frame: pl.DataFrame, column: str) -> dict[str, Any] | None:
    """The row with the largest value, the first of several; None if no value is above 0."""
    rows = frame.filter(pl.col(column) > 0).sort(column, descending=True, maintain_order=True)
    return rows.row(0, named=True) if rows.height else None


def top_group(frame: pl.DataFrame, by: str, column: str, *more: str) -> dict[str, Any] | None:
    """The group with the largest sum of a column, with the sums of further ones; None if no sum is above 0."""
    return greatest(frame.group_by(by, maintain_order=True).agg(pl.col(column, *more).sum()), column)


def total_of(frame: pl.DataFrame, column: str) -> int:
    """The sum of a column of integers; 0 if nothing is known."""
    return int(frame[column].sum())


def over_ranks(frame: pl.DataFrame) -> str:
    """The words that follow a sum over several ranks; empty for one rank."""
    return " over all ranks" if frame["rank"].n_unique() > 1 else ""

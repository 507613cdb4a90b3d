"""Decide whether a rank delays the others: one of five states, the same in every output.

In: the result of `stragglers`. Out: the state, and the sentence for states without a straggler.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import polars as pl

from rankscope.primitives.statistics import Significance
from rankscope.results.headline import Headline
from rankscope.rundir.plurals import plural

ENOUGH_STEPS = 3
"""With fewer steps, a difference between ranks may be random."""

RankState: TypeAlias = Literal["straggler", "none", "too-few-steps", "not-compared", "one-rank"]


def rank_state(frame: pl.DataFrame) -> RankState:
    """The state of a run of several ranks.

    A rank with a cause is a straggler. Otherwise the rank that the others waited for longest decides: there are too few
    steps if its delay could not have been significant.

    Args:
        frame: rows of `stragglers` per rank.
    """
    if frame["cause"].drop_nulls().len():
        return "straggler"
    compared = _compared(frame)
    if compared.height < 2 or not compared["waited_ns"].drop_nulls().len():
        return "not-compared"
    most = _most_waited(compared)
    too_few = _steps(frame) < ENOUGH_STEPS or most["significance"] == Significance.TOO_FEW.value
    return "too-few-steps" if too_few else "none"


def without_straggler(frame: pl.DataFrame) -> Headline:
    """The sentence for a state without a straggler.

    Args:
        frame: rows of `stragglers` per rank, without a cause.
    """
    state = rank_state(frame)
    if state == "not-compared":
        matched = frame["waited_ns"].drop_nulls().len()
        why = "fewer than two have complete traces" if matched else "no collective was matched across them"
        return Headline.of(f"The ranks cannot be compared: {why}.")
    compared = _compared(frame)
    most, steps = _most_waited(compared), _steps(frame)
    prefix = f"Too few steps to tell whether a rank delays the others ({counted_steps(steps)})"
    if state == "none":
        not_significant = Significance.SIGNIFICANT.value not in compared["significance"]
        prefix = "No significant straggler" if not_significant else "No single rank delays the others"
        if not most["waited_ns"]:
            return Headline.of("No rank delays the others.")
    values: dict[str, tuple[int | float | str, str]] = {"steps": (steps, "count")}
    if not most["waited_ns"]:
        return Headline.of(f"{prefix}.", **values)
    longest = "the longest wait is for rank {rank}: {waited}" + (
        f" over {counted_steps(steps)}" if state == "none" else ""
    )
    return Headline.of(f"{prefix}; {longest}.", rank=(most["rank"], ""), waited=(most["waited_ns"], "ns"), **values)


def counted_steps(steps: int) -> str:
    """The number of steps in a headline's text."""
    return f"{{steps}} {plural('step', steps)}"


def _compared(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("significance").is_not_null())


def _most_waited(frame: pl.DataFrame) -> dict[str, Any]:
    return frame.sort("waited_ns", "rank", descending=[True, False], nulls_last=True).row(0, named=True)


def _steps(frame: pl.DataFrame) -> int:
    """The number of steps in which ranks were compared."""
    return int(frame["steps"].drop_nulls().to_numpy().max(initial=0))

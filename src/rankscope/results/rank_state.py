"""Decide whether a rank delays the others: one of five states, the same in every output.

In: the result of `stragglers`. Out: the state, the rank that the others waited for longest, and the sentence for states
without a straggler.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from rankscope.primitives.statistics import Significance
from rankscope.primitives.stragglers.causes import duration
from rankscope.results.finding import Evidence
from rankscope.results.headline import Headline
from rankscope.rundir.plurals import counted, plural

ENOUGH_STEPS = 3
"""With fewer steps, a difference between ranks may be random."""

LEAST_STEPS = 15
"""Of recorded steps, or of the log's: on a busy machine one of two ranks is late in fewer by chance."""

AMONG_RECORDED = " among the recorded ranks"

RankState: TypeAlias = Literal["straggler", "none", "too-few-steps", "not-compared", "one-rank"]


def rank_state(frame: pl.DataFrame) -> RankState:
    """The state of a run of several ranks.

    A rank with a cause is a straggler. Otherwise the rank that the others waited for longest decides: there are too few
    steps if its delay could not have been significant, and it is not compared if no other rank runs its program.

    Args:
        frame: rows of `stragglers` per rank.
    """
    if frame["cause"].drop_nulls().len():
        return "straggler"
    most = _most_waited(frame)
    if most is None and judged_by_log(frame):
        return "too-few-steps" if Significance.TOO_FEW.value in frame["significance"] else "none"
    if most is None or most["significance"] is None:
        return "not-compared"
    few = most["log_steps"] is None and _steps(frame) < ENOUGH_STEPS
    too_few = few or most["significance"] == Significance.TOO_FEW.value
    return "too-few-steps" if too_few else "none"


def judged_by_log(frame: pl.DataFrame) -> bool:
    """Whether the job's step log decided, so that no trace is needed.

    Args:
        frame: rows of `stragglers` per rank.
    """
    return bool(frame["log_steps"].drop_nulls().len())


def without_straggler(frame: pl.DataFrame, *, ranks_missing: bool = False) -> Headline:
    """The sentence for a state without a straggler.

    Args:
        frame: rows of `stragglers` per rank, without a cause.
        ranks_missing: whether the job has ranks without a complete trace: any of them may delay the others.
    """
    state = rank_state(frame)
    longest, steps, unexplained = longest_wait(frame), _steps(frame), late_unexplained(frame)
    if state == "not-compared" and not steps:
        return Headline.of("The ranks cannot be compared: no collective was matched between complete traces.")
    if state == "not-compared":
        verdict = f"{_not_compared(frame)}, as in pipeline stages of one rank"
    elif state == "too-few-steps":
        how_many = f"{counted_steps(steps)} recorded; {enough(frame)}"
        verdict = f"{undecided(frame).capitalize()} whether a rank delays the others ({how_many})"
    elif unexplained is not None:
        verdict = f"Rank {unexplained} delays the others in some steps, but these traces do not show why"
    elif Significance.SIGNIFICANT.value in frame["significance"]:
        verdict = "No single rank delays the others"
    else:
        verdict, longest = f"No rank delays the others{ruled_out(frame)}", None
    if ranks_missing and state == "none":
        verdict += AMONG_RECORDED
    values = (Evidence("steps", steps, "count"),) if state == "too-few-steps" else ()
    if longest is None:
        return Headline(f"{verdict}.", values)
    return Headline(f"{verdict}; {longest.text}.", (*longest.values, *values))


def _not_compared(frame: pl.DataFrame) -> str:
    """Which ranks have no peer: all of them, or the one that is waited for."""
    most = _most_waited(frame)
    if most is None or frame["significance"].null_count() == frame.height:
        return "The ranks cannot be compared: no two run the same program"
    return f"Rank {most['rank']} cannot be compared: no other rank runs its program"


def late_unexplained(frame: pl.DataFrame) -> int | None:
    """The rank that the others waited for longest, if that is significant, costs them time, and has no clear cause.

    Args:
        frame: rows of `stragglers` per rank, without a cause.
    """
    most = _most_waited(frame)
    if most is None:
        return None
    # Where others are as late in the same steps, it would save nothing alone.
    costs = 2 * (most["saving_ns"] or 0) > (most["lateness_ns"] or 0)
    return int(most["rank"]) if costs and most["significance"] == Significance.SIGNIFICANT.value else None


def longest_wait(frame: pl.DataFrame) -> Headline | None:
    """Which rank the others waited for longest, as a clause; None if they waited for none, or per step for less than
    what the log could tell from chance.

    It is an indication only: whether the rank delays the others, the state tells.

    Args:
        frame: rows of `stragglers` per rank.
    """
    most = _most_waited(frame)
    if most is None or not most["waited_ns"]:
        return None
    least = frame["least_delay_ns"].drop_nulls().to_numpy() if judged_by_log(frame) else np.zeros(0, dtype=np.int64)
    if most["waited_ns"] < int(least.max(initial=0)) * _steps(frame):
        return None
    text = "the longest wait is for rank {rank}: {waited} in total"
    return Headline.of(text, rank=(most["rank"], ""), waited=(most["waited_ns"], "ns"))


def ruled_out(frame: pl.DataFrame) -> str:
    """How large a delay is ruled out, in how many steps: ` by more than 8 ms per step (50 steps)`.

    Args:
        frame: rows of `stragglers` per rank.
    """
    least, steps = frame["least_delay_ns"].drop_nulls(), frame["log_steps"].drop_nulls()
    number = int(steps.to_numpy().max()) if steps.len() else _steps(frame)
    if not least.len():
        return ""
    return f" by more than {duration(int(least.to_numpy().max()))} per step ({counted(number, 'step')})"


def undecided(frame: pl.DataFrame) -> str:
    """Why it is open whether a rank delays the others: the times of the log vary too much, or there are too few steps.

    Args:
        frame: rows of `stragglers` per rank.
    """
    return "not known" if judged_by_log(frame) else Significance.TOO_FEW.value


def enough(frame: pl.DataFrame) -> str:
    """How many steps would do.

    Args:
        frame: rows of `stragglers` per rank.
    """
    logged, least = (frame[name].drop_nulls().to_numpy() for name in ("log_steps", "least_delay_ns"))
    if logged.size and least.size:
        delay = duration(int(least.max()))
        return f"{counted(int(logged.max()), 'step')} vary so much that only {delay} and more would show"
    needed = frame["steps_needed"].drop_nulls()
    steps = max(int(needed.to_numpy().max(initial=0)), LEAST_STEPS)
    # From the spread of a few steps no third digit is known.
    return f"about {int(float(f'{steps:.1e}')):,} would do"


def counted_steps(steps: int) -> str:
    """The number of steps in a headline's text."""
    return f"{{steps}} {plural('step', steps)}"


def _most_waited(frame: pl.DataFrame) -> dict[str, Any] | None:
    """The rank that the others waited for longest; None if fewer than two ranks have shared collectives."""
    shared = frame.filter(pl.col("waited_ns").is_not_null())
    if shared.height < 2:
        return None
    return shared.sort("waited_ns", "rank", descending=[True, False]).row(0, named=True)


def _steps(frame: pl.DataFrame) -> int:
    """The number of steps in which ranks were compared."""
    return int(frame["steps"].drop_nulls().to_numpy().max(initial=0))

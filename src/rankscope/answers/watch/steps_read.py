"""In which steps all collectives of all ranks are in the logs.

They are read much more rarely than steps are written, and of a job with many calls only some are read.

In: logs. Out: numbers of steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankscope.answers.watch.log import RankLog, StepLine

Lines = Mapping[int, Mapping[int, StepLine]]
"""By rank and step."""
_LATEST_READ_NS = 600_000_000_000
"""Collectives are in the log half a minute after their step, some minutes on a busy machine that calls many."""


def steps_read(logs: Mapping[int, RankLog], lines: Lines, steps: list[int], most: int) -> list[int]:
    """Of the latest steps, those in which no rank called a collective that is not in its log.

    Args:
        logs: by rank.
        lines: their steps.
        steps: those that all ranks have.
        most: how many to look at.
    """
    return _without_gaps(logs, lines, _with_calls(logs, lines, steps)[-most:])


def _with_calls(logs: Mapping[int, RankLog], lines: Lines, steps: list[int]) -> list[int]:
    """The steps less the latest, of which the collectives are not in the log yet; all if ranks have called none since.

    Collectives are read much more rarely than steps are written.
    """
    if not steps or not all(log.calls for log in logs.values()):
        return steps
    read = {rank: log.calls[-1].at_ns for rank, log in logs.items()}
    if any(lines[rank][steps[-1]].start_ns - at > _LATEST_READ_NS for rank, at in read.items()):
        return steps
    found = [step for step in steps if all(lines[rank][step].start_ns <= at for rank, at in read.items())]
    return found or steps


def _without_gaps(logs: Mapping[int, RankLog], lines: Lines, steps: list[int]) -> list[int]:
    """The steps in which no rank called a collective that could not be read."""
    known = np.ones(len(steps), dtype=np.bool_)
    for rank, log in logs.items():
        if not log.calls or not log.gaps:
            continue
        begin = np.array([lines[rank][step].start_ns for step in steps], dtype=np.int64)
        end = begin + np.array([lines[rank][step].ns for step in steps], dtype=np.int64)
        gaps = np.array([(np.iinfo(np.int64).min, log.calls[0].at_ns), *log.gaps], dtype=np.int64)
        # The first gap that ends after a step begins: whether it begins before the step ends.
        after = np.searchsorted(gaps[:, 1], begin, side="right")
        known &= (after == len(gaps)) | (gaps[np.minimum(after, len(gaps) - 1), 0] >= end)
    return [step for step, whole in zip(steps, known.tolist(), strict=True) if whole]

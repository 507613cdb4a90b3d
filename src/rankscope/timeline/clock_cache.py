"""The run's clock as it was found last, kept beside the tables: the timeline is there before the analyses are."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import rankscope
from rankscope.pipeline import Run
from rankscope.store.sidecar import read_sidecar, write_sidecar
from rankscope.timeline.clock import RankClock, RunClock

VERSION = 1
FILE = "clock.bin"


def _key(run: Run) -> str:
    ranks = [(rank, [trace.key for trace in traces]) for rank, traces in run.loaded.ranks.items()]
    what = (VERSION, rankscope.__version__, ranks, run.options, run.world_size)
    return hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()


def remember_clock(run: Run, clock: RunClock) -> None:
    """Keep the clock of a run."""
    folder = next(iter(run.loaded.ranks.values()))[0].folder
    ranks = {str(rank): asdict(one) for rank, one in clock.ranks.items()}
    write_sidecar(folder, FILE, _key(run), {**asdict(clock), "ranks": ranks}, {})


def recall_clock(run: Run) -> RunClock | None:
    """The clock that was found for these very files; None where there is none."""
    found = read_sidecar(next(iter(run.loaded.ranks.values()))[0].folder, FILE, _key(run))
    if found is None:
        return None
    try:
        facts = dict(found.facts)
        ranks = {
            int(rank): RankClock(**{**one, "bases": tuple(one["bases"])}) for rank, one in facts.pop("ranks").items()
        }
        return RunClock(**facts, ranks=ranks)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None

"""Caches the run's clock next to the tables, so that the timeline need not wait for the analyses.

In: a clock and the files that it is of. Out: that clock, for exactly these files.
"""

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
    """Store the clock of a run."""
    folder = next(iter(run.loaded.ranks.values()))[0].folder
    ranks = {str(rank): asdict(one) for rank, one in clock.ranks.items()}
    write_sidecar(folder, FILE, _key(run), {**asdict(clock), "ranks": ranks}, {})


def recall_clock(run: Run) -> RunClock | None:
    """The cached clock for exactly these files, or None."""
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

"""Ranks that were not to be recorded: the user chose others, or the script's own profiler runs on others.

In: the manifests of a run. Out: the ranks without a trace that none was expected of, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rankscope.errors import ConfigError
from rankscope.rundir.manifest import RankManifest, RunManifest
from rankscope.rundir.ranks import parse_ranks


@dataclass(frozen=True)
class LeftOut:
    """Ranks that have no trace on purpose.

    Attributes:
        ranks: their numbers, in order.
        why: who chose the others, as a phrase.
        record_all: how to record these too, as a sentence.
    """

    ranks: tuple[int, ...]
    why: str
    record_all: str


def left_out(
    size: int, present: Collection[int], run: RunManifest | None, manifests: Sequence[RankManifest]
) -> LeftOut | None:
    """The ranks that none expects a trace of; None if there are none.

    Args:
        size: the number of ranks in the job.
        present: those with a trace.
        run: the manifest of the run, if it has one.
        manifests: those of its ranks.
    """
    without = [rank for rank in range(size) if rank not in present]
    adopted = {manifest.rank for manifest in manifests if any(trace.adopted for trace in manifest.written)}
    # A rank that was to record has written something, or says why not.
    idle = {
        manifest.rank
        for manifest in manifests
        if manifest.state == "finished" and not manifest.written and not manifest.failed
    }
    by_script = tuple(rank for rank in without if adopted and rank in idle and rank not in adopted)
    if by_script:
        why = "the script's own profiler runs on the others"
        return LeftOut(by_script, why, "Record all ranks (rankscope run --take-over).")
    try:
        choice = parse_ranks(run.ranks) if run is not None and run.ranks else None
    except ConfigError:
        choice = None  # of a manifest that something else has written
    if choice is None or choice.everyone:
        return None
    chosen = tuple(rank for rank in without if not choice.selects(rank))
    if not chosen:
        return None
    return LeftOut(chosen, f"ranks {choice.expression} were chosen", "Record all ranks (--ranks all).")

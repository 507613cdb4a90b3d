"""What became of a request to record, on the ranks whose files this directory has.

In: a request's answer, and the logs. Out: `Progress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankscope.answers.watch.log import RankLog, WatchLogs
from rankscope.answers.watch.state import WatchStatus
from rankscope.answers.watch.status import manifest_of
from rankscope.rundir.ranks import RankChoice
from rankscope.rundir.watch_files import Answer, Outcome


@dataclass(frozen=True)
class Progress:
    """The chosen ranks whose logs are here, by what became of the request on each.

    Attributes:
        recorded: by rank, its first and last step.
        lost: by rank, why it was not recorded, and will not be.
        silent: ranks of which nothing is known and whose logs do not grow.
        waiting: the others.
    """

    recorded: Mapping[int, tuple[int, int]]
    lost: Mapping[int, str]
    silent: tuple[int, ...]
    waiting: tuple[int, ...]

    @property
    def settled(self) -> bool:
        """Whether nothing more will become known."""
        return not self.waiting and not self.silent


def chosen_ranks(run_dir: Path, logs: WatchLogs, choice: RankChoice) -> list[int]:
    """The ranks that a request names, of those whose logs are here."""
    found = []
    for rank, log in logs.latest().items():
        manifest = manifest_of(run_dir, log)
        if choice.selects(rank, manifest.local_rank if manifest is not None else None):
            found.append(rank)
    return found


def read_progress(run_dir: Path, logs: WatchLogs, status: WatchStatus, ranks: list[int], answer: Answer) -> Progress:
    """What became of a request.

    Args:
        run_dir: the run directory.
        logs: what was read of it.
        status: the state of the job, from the same logs.
        ranks: those that it is for.
        answer: the steps that the ranks have agreed on.
    """
    by_rank, states = logs.latest(), {each.rank: each.state for each in status.ranks}
    recorded: dict[int, tuple[int, int]] = {}
    lost: dict[int, str] = {}
    silent, waiting = [], []
    for rank in ranks:
        log = by_rank.get(rank)
        # A rank of an attempt that has just begun may have no log yet.
        state = states.get(rank, "running" if rank < (status.world_size or 0) else "dead")
        restarted = status.restarting or (log is not None and log.header.restart_count > answer.restart_count)
        outcome = None if log is None else log.outcomes.get(answer.id) or _at_the_end(run_dir, log, state, answer)
        if outcome is not None and outcome.state == "recorded":
            recorded[rank] = outcome.first_step, outcome.last_step
        elif outcome is not None and outcome.state == "lost":
            lost[rank] = outcome.reason
        elif restarted:
            lost[rank] = "the job has failed before, and restarts"
        elif state == "dead":
            lost[rank] = "its process is gone"
        elif state in ("finished", "interrupted"):
            lost[rank] = "its loop has ended before"
        elif state == "silent":
            silent.append(rank)
        else:
            waiting.append(rank)
    return Progress(recorded, lost, tuple(silent), tuple(waiting))


def _at_the_end(run_dir: Path, log: RankLog, state: str, answer: Answer) -> Outcome | None:
    """What was recorded while the job ended: the log has ended before."""
    manifest = manifest_of(run_dir, log) if state in ("finished", "interrupted") else None
    for trace in manifest.written if manifest is not None else ():
        if trace.first_step is not None and trace.first_step == answer.first_step:
            return Outcome(answer.id, "recorded", trace.first_step, trace.last_step or trace.first_step)
    return None

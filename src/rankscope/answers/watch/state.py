"""The state of a watched job: what `status` finds in its logs.

In: fields. Out: dataclasses for the terminal, JSON, the page and monitoring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.answers.watch.changes import Change
from rankscope.primitives.statistics import Verdict
from rankscope.primitives.stragglers.step_log import LateRank

RESTART_S = 30.0
"""How long a job that was interrupted may take until its next attempt logs steps, if nothing says that there is one."""


@dataclass(frozen=True)
class RankState:
    """How far one rank is.

    Attributes:
        rank: its number.
        last_step: the last complete step in its log.
        state: of its manifest (``running``, ``finished``, ``interrupted``); ``dead`` if its process is gone without
            having noted its end, which only a reader on its host can see; ``silent`` if its log has not grown for long.
        silent_s: seconds since its log has grown.
        missed: collectives that are not in its log, because there was no time to read them.
        damaged: lines of its log that could not be read.
    """

    rank: int
    last_step: int | None
    state: str
    silent_s: float
    missed: int
    damaged: int


@dataclass(frozen=True)
class RankTimes:
    """What a rank does in a step: medians of the judged steps.

    Attributes:
        rank: its number.
        step_ns: how long a step takes on it.
        local_ns: of that, what it is busy by itself; None if it is unknown.
        waiting_ns: the rest: it waits for others; None if the log has no collectives, which say that.
    """

    rank: int
    step_ns: int
    local_ns: int | None
    waiting_ns: int | None


@dataclass(frozen=True)
class StepTime:
    """How long steps take: of the slowest rank in each.

    Attributes:
        steps: how many steps these figures are from.
        median_ns, most_ns: of the judged steps.
        change: the last lasting change, in what is known of the history; None if too few steps are known.
        changed_at: its first step.
    """

    steps: int
    median_ns: int
    most_ns: int
    change: Change | None
    changed_at: int | None


@dataclass(frozen=True)
class LongStep:
    """A step that took much longer than usual.

    Attributes:
        step: its number.
        ns: how long it took.
        rank: the rank that was busy by itself for longer than the others; None if it was none, or is not known.
        excess_ns: by how much longer.
        known: whether it is known how long each rank was busy.
    """

    step: int
    ns: int
    rank: int | None = None
    excess_ns: int = 0
    known: bool = True


@dataclass(frozen=True)
class LastArrival:
    """Who arrives last in a group.

    Attributes:
        group: its name.
        ranks: those that were compared.
        rank: who arrives last most often.
        share: of the collectives, in which it does.
        late_ns: median time after the first to arrive.
        collectives: how many were compared.
    """

    group: str
    ranks: tuple[int, ...]
    rank: int
    share: float
    late_ns: int
    collectives: int


@dataclass(frozen=True)
class WatchStatus:
    """The state of a watched job.

    Attributes:
        run_id: its id.
        world_size: its ranks, as far as it is known.
        attempts: attempts of an elastic job that have logs; the latest is shown.
        ranks: those with a log.
        step_time: None if there are no steps yet.
        rank_times: of the ranks that have steps.
        late_ranks: the stragglers.
        verdicts: by rank, whether it is a straggler.
        unknown: why there is no verdict; empty if there is one.
        last_arrivals: by group.
        long_steps: the longest.
        notes: the latest events.
        warnings: what limits these statements.
        least_delay_ns: the least delay per step that the judged steps would show on any rank; None where they show
            none.
        restarting: whether the latest attempt has failed and torchrun is to start the job again.
    """

    run_id: str | None
    world_size: int | None
    attempts: int
    ranks: tuple[RankState, ...]
    step_time: StepTime | None
    rank_times: tuple[RankTimes, ...]
    late_ranks: tuple[LateRank, ...]
    verdicts: Mapping[int, Verdict]
    unknown: str
    last_arrivals: tuple[LastArrival, ...]
    long_steps: tuple[LongStep, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    least_delay_ns: int | None = None
    restarting: bool = False

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(each.state in ("running", "silent") for each in self.ranks)

    @property
    def state(self) -> str:
        """``running``, ``restarting`` or ``ended``."""
        return "running" if self.running else "restarting" if self.restarting else "ended"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes: the ranks have finished, or ended some time ago and were not started again."""
        if self.running or self.restarting:
            return False
        return all(each.state == "finished" or each.silent_s > RESTART_S for each in self.ranks)

"""What the log of a watched job says of stragglers: who, since when, in which phase, and what its thread did.

A log covers many steps without a profiler, a trace few in detail. The straggler engine judges both; where they are of
one job, the log decides who is late, and the trace names what is longer.

In: nothing. Out: values that the reader of logs makes and the analysis of traces reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.primitives.statistics import Verdict
from rankscope.primitives.stragglers.stragglers import Straggler
from rankscope.primitives.stragglers.thread_excess import ThreadExcess


@dataclass(frozen=True)
class LateRank:
    """A straggler, as the log has it.

    Attributes:
        found: what the engine says.
        rank: its number.
        phase: where most of the excess is; None if the log cannot tell.
        phase_ns: per step.
        since_step: the first step of the change after which it is late; None if it is as late from the first known
            step on.
        thread: what its thread did meanwhile.
    """

    found: Straggler
    rank: int
    phase: str | None
    phase_ns: int
    since_step: int | None
    thread: ThreadExcess = field(default_factory=ThreadExcess)


@dataclass(frozen=True)
class StepLog:
    """The verdict of a job's log.

    Attributes:
        steps: how many steps were judged.
        step_ns: how long a usual one takes.
        late: the stragglers.
        verdicts: by rank, whether it is one; empty where the log cannot tell.
        least_delay_ns: the least delay per step that these steps would show on any rank; None where it is not known.
    """

    steps: int
    step_ns: int
    late: tuple[LateRank, ...]
    verdicts: Mapping[int, Verdict]
    least_delay_ns: int | None = None

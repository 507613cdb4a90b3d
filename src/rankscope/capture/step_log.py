"""What is known when a recording ends: taken down in the loop, put together in the writer's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankscope.capture.anchors import Anchors
from rankscope.capture.environment import memory
from rankscope.capture.steps import StepTimes

if TYPE_CHECKING:
    from rankscope.capture.describe import ThisRank
    from rankscope.capture.trace_queue import Ended
    from rankscope.rundir.metadata import TraceMetadata

STEPS_IN_TRACE = 500
"""So many of the first and of the latest steps have their times in each trace; all are in the manifest."""


class Told:
    """The run so far.

    Args:
        step: the step that runs now.
        times: of the steps.
        anchors: of the clocks.
        cost: of the profiler, in stalls and bytes.
    """

    def __init__(self, step: int, times: StepTimes | None, anchors: Anchors, cost: Mapping[str, object]) -> None:
        self._step, self._cost = step, cost
        self._times = times.snapshot() if times is not None else None
        self._anchors, self._kept = anchors.for_trace(), anchors.kept()
        self._memory = memory()

    def metadata(self, rank: ThisRank, ended: Ended) -> TraceMetadata:
        """What the trace says of itself."""
        times = self._times
        medians = times.medians(self._step, STEPS_IN_TRACE) if times is not None else {}
        return rank.metadata(
            ended.first,
            ended.last,
            partial_step=ended.partial_step,
            anchors=self._anchors,
            cost={**self._cost, "step_median_ns": medians},
            step_times=times.spans(self._step, STEPS_IN_TRACE) if times is not None else (),
            collectives=ended.recording.calls.describe(),
            memory=self._memory,
        )

    def diary(self) -> dict[str, object]:
        """What the manifest says of the run so far."""
        if self._times is None:
            return {}
        return {
            "step_times": self._times.spans(self._step),
            "step_blocks": self._times.blocks(),
            "step_median_ns": self._times.medians(self._step),
            "clock_anchors": self._kept,
        }

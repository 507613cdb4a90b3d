"""The run's replay: one for all analyses that ask it, and for the diagnosis.

In: what an analysis of all ranks gets, with the result of `segments`. Out: the run as its replay has it.
"""

from __future__ import annotations

from rankscope.results.analysis import Inputs
from rankscope.whatif.run import ReplayedRun

SEGMENTS = "segments"


def replayed(inputs: Inputs) -> ReplayedRun | None:
    """The run as its replay has it, made once; None if there is no step to replay.

    Args:
        inputs: of all ranks; with `segments` among the results.
    """
    return inputs.once("replay", lambda: ReplayedRun.of(inputs.results[SEGMENTS], inputs.options.steps))

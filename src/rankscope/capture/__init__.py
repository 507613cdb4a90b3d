"""Profiles this rank of a training job without harming the job. Needs only torch and the standard library.

In: the options of ``CaptureConfig``, from the script or from ``RANKSCOPE_*`` variables, and the steps of the loop.
Out: traces and manifests in the run directory. ``profiler`` is what a user calls, ``auto_profiler`` what profiles an
unmodified script; ``schedule`` says which steps are recorded, ``recording`` drives torch, ``trace_queue`` and
``writer`` do the rest off the loop.
"""

from __future__ import annotations

from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.rundir.config import CaptureConfig

__all__ = ["CaptureConfig", "CaptureWarning", "Profiler"]

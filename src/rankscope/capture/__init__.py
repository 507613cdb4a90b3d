"""Profile this rank of a training job, without ever harming the job. Needs torch and the standard library
alone.

``profiler`` is what a user sees; ``config`` what can be set, ``ranks`` which ranks, ``schedule`` which steps,
``process`` who this rank is, ``recorder`` the torch profiler, ``writer`` what happens off the loop,
``ranklog`` this rank's manifest, ``notices`` how it warns.
"""

from __future__ import annotations

from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.rundir.config import CaptureConfig

__all__ = ["CaptureConfig", "CaptureWarning", "Profiler"]

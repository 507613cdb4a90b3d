"""Is this machine, and is this run, fit for profiling? Each matter is a check: ok, a warning, or a failure, with what
is wrong and how to fix it.

``python -m rankscope.doctor`` is ``rankscope doctor`` where rankscope was installed beside torch alone. torch is asked
in a process of its own, with a time-out; nothing is changed but for files that are written to try a directory and
removed.

One file a subject: ``software``, ``devices``, ``launcher``, ``network``, ``disk``, ``host``, ``run``, ``logs``.
"""

from __future__ import annotations

from rankscope.doctor.check import Check, Status, worst
from rankscope.doctor.run_checks import run_checks

__all__ = ["Check", "Status", "run_checks", "worst"]

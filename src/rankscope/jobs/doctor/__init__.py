"""Checks of a machine, and of a run directory, for what profiling needs.

In come the environment, this host, and a run directory with its logs; out comes a :class:`Check` for each subject: ok,
a warning or a failure, with what is wrong and how to fix it. One file per subject.

``python -m rankscope.jobs.doctor`` is ``rankscope doctor`` where rankscope was installed with --no-deps. torch runs in
a separate process with a time-out; only a temporary file is written to each directory that is tried.
"""

from __future__ import annotations

from rankscope.jobs.doctor.check import Check, Status, worst
from rankscope.jobs.doctor.run_checks import run_checks

__all__ = ["Check", "Status", "run_checks", "worst"]

"""Job scripts, as ``rankscope job slurm|pbs|flux`` writes them.

In come a :class:`JobRequest` and a :class:`Machine` (``machines/*.toml``, or a site's file); out comes a script.
Every user's value is quoted, or refused where a scheduler's directive cannot quote it.
"""

from __future__ import annotations

from rankscope.jobs.jobscript.machine import Machine, find_machine, known_machines
from rankscope.jobs.jobscript.request import JobRequest
from rankscope.jobs.jobscript.script import job_script

__all__ = ["JobRequest", "Machine", "find_machine", "job_script", "known_machines"]

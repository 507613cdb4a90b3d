"""Job scripts: what ``rankscope job slurm|pbs|flux`` writes.

``request`` holds what a job is to be, ``machine`` what is particular about a machine (``machines/*.toml``, and a
site's own), ``directives`` writes the scheduler's lines, ``ranks`` how ranks are started, ``script`` the whole. Every
value of a user is quoted, or refused where it would have to stand in a scheduler's line (``quoting``).
"""

from __future__ import annotations

from rankscope.jobs.jobscript.machine import Machine, find_machine, known_machines
from rankscope.jobs.jobscript.request import JobRequest
from rankscope.jobs.jobscript.script import job_script

__all__ = ["JobRequest", "Machine", "find_machine", "job_script", "known_machines"]

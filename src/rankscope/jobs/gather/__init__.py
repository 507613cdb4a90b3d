"""Bring the parts of a run from the disks of its hosts into one place, and say whether all ranks are there.

``python -m rankscope.jobs.gather`` is ``rankscope gather`` where rankscope was installed beside torch alone.

``sources`` knows where files come from (rsync, else scp; folders of this machine), ``merge`` how they get into the run
without ever replacing another file, ``complete`` what a run should hold.
"""

from __future__ import annotations

from rankscope.jobs.gather.complete import Completeness, completeness
from rankscope.jobs.gather.merge import Gathered, gather
from rankscope.jobs.gather.sources import parse_source

__all__ = ["Completeness", "Gathered", "completeness", "gather", "parse_source"]

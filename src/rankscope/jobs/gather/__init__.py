"""Copying the parts of a run from the disks of its hosts into one directory, and checking that it is complete.

In come directories, local or behind ssh; out come a merged run directory and a :class:`Completeness`.
``python -m rankscope.jobs.gather`` is ``rankscope gather`` where rankscope was installed with --no-deps.
"""

from __future__ import annotations

from rankscope.jobs.gather.complete import Completeness, completeness
from rankscope.jobs.gather.merge import Gathered, gather
from rankscope.jobs.gather.sources import parse_source

__all__ = ["Completeness", "Gathered", "completeness", "gather", "parse_source"]

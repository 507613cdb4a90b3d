"""Copying the parts of a run from the disks of its hosts into one directory, and checking that it is complete.

In come directories, local or behind ssh; out come a merged run directory and a :class:`Completeness`.
``python -m rankscope.jobs.gather`` is ``rankscope gather`` where rankscope was installed with --no-deps.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # the last line of a job script in an old image
    sys.exit("error: gathering traces needs Python 3.10 or newer")

from rankscope.jobs.gather.complete import Completeness, completeness
from rankscope.jobs.gather.merge import Gathered, gather
from rankscope.jobs.gather.sources import parse_source

__all__ = ["Completeness", "Gathered", "completeness", "gather", "parse_source"]

"""A job that hangs, from inside: ``watch`` notices a loop that makes no step, ``dump`` writes what this rank does.

In: the steps of a loop. Out: heartbeats and dumps in the run directory (`rundir/hang_dump.py`), which
``rankscope hang`` reads.
"""

from __future__ import annotations

from rankscope.capture.hang.dump import write_hang_dump
from rankscope.capture.hang.watch import HangWatch

__all__ = ["HangWatch", "write_hang_dump"]

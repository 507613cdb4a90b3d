"""The verdict on a hung job, from the dumps that its ranks left: ``rankscope.hang.read("dumps/")``.

In: files and directories. Out: a :class:`HangVerdict`. It needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rankscope.hang.causes import Cause
from rankscope.hang.diagnosis import diagnose
from rankscope.hang.files import NoDumpsError, find_dumps
from rankscope.hang.verdict import HangVerdict, HungCollective, RankVerdict

__all__ = ["Cause", "HangVerdict", "HungCollective", "NoDumpsError", "RankVerdict", "read"]


def read(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> HangVerdict:
    """The verdict on the dumps in a run directory, in any directory, or in files.

    Args:
        source: a path, or several of one job. Directories are searched recursively.

    Raises:
        NoDumpsError: a path does not exist, or there is no dump.
    """
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    found = find_dumps(paths)
    return diagnose(found.dumps, found.heartbeats, found.problems, found.completed)

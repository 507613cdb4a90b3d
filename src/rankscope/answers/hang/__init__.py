"""The verdict on a hung job, from the dumps that its ranks left: ``rankscope.answers.hang.read("dumps/")``.

In: files and directories. Out: a :class:`HangVerdict`. It needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rankscope.answers.hang.causes import Cause
from rankscope.answers.hang.diagnosis import diagnose
from rankscope.answers.hang.files import NoDumpsError, find_dumps
from rankscope.answers.hang.verdict import HangVerdict, HungCollective, RankVerdict
from rankscope.rundir.hang_dump import HANG_FOLDER

__all__ = ["Cause", "HangVerdict", "HungCollective", "NoDumpsError", "RankVerdict", "end_of_job", "read"]


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


def end_of_job(run_dir: str | os.PathLike[str], run_id: str | None = None, since: float = 0.0) -> HangVerdict | None:
    """Why the latest job in a run directory ended or hangs, by what its watch wrote; ``None`` if it did neither.

    Args:
        run_dir: the run directory.
        run_id: of the job, if it is known: another one is of no interest.
        since: earlier dumps are of no interest; seconds since 1970.
    """
    try:
        found = find_dumps([Path(run_dir, HANG_FOLDER)])
    except (NoDumpsError, OSError):
        return None
    newest = max(found.dumps, key=lambda dump: dump.time_ns, default=None)
    if newest is None or newest.time_ns < since * 1e9 or (run_id and newest.run_id and newest.run_id != run_id):
        return None
    verdict = diagnose(found.dumps, found.heartbeats, found.problems)
    return verdict if verdict.found and not verdict.over else None

"""What the step log of a run says of stragglers, for the analyses of its traces.

In: directories and the run's id. Out: a `StepLog`; None without a log of this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status, step_log
from rankscope.errors import RankscopeError
from rankscope.primitives.stragglers.step_log import StepLog
from rankscope.rundir.watch_files import WATCH_FOLDER


def read_step_log(folders: Sequence[str], run_id: str | None) -> StepLog | None:
    """The verdict of the log in the first of some directories that has one of this run.

    Args:
        folders: directories, or URLs, of which no log is read.
        run_id: the run's id; None if its traces have none.
    """
    for folder in folders:
        # A log that cannot be read is reported by `rankscope watch`.
        with suppress(OSError, RankscopeError):
            if "://" not in folder and Path(folder, WATCH_FOLDER).is_dir():
                status = read_status(folder, WatchLogs(folder))
                if run_id in (None, status.run_id):
                    return step_log(status)
    return None

"""A watched job with the verdict on its hang, if it has one: read again and again, each time what is new.

In: a run directory. Out: `JobState`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankscope.answers.hang import HangVerdict, NoDumpsError
from rankscope.answers.hang.diagnosis import diagnose
from rankscope.answers.hang.files import find_dumps
from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.state import WatchStatus
from rankscope.answers.watch.status import JUDGED_STEPS, read_status
from rankscope.rundir.hang_dump import HANG_FOLDER

SHARE = 0.2
"""Of a core, that is used at most to read a job again and again."""


def pause_after(took_s: float, interval_s: float) -> float:
    """How long after the begin of one look the next one begins: a look at thousands of ranks takes a while."""
    return max(interval_s, took_s / SHARE)


@dataclass(frozen=True)
class JobState:
    """The state of a watched job.

    Attributes:
        status: from its log.
        verdict: on its latest hang; None if there are no dumps and heartbeats, or they show none.
        lasts: whether not all ranks that have a dump have made a step since.
    """

    status: WatchStatus
    verdict: HangVerdict | None
    lasts: bool

    @property
    def hangs(self) -> bool:
        """Whether the job hangs now; False if its ranks have ended."""
        return self.lasts and self.status.running


class WatchedJob:
    """Reads a job.

    Args:
        run_dir: its run directory.
        judged_steps: how many of the latest steps the straggler is found from.

    Raises:
        NoTracesError: there is no such directory, or no log in it.
    """

    def __init__(self, run_dir: str | Path, judged_steps: int = JUDGED_STEPS) -> None:
        self._run_dir, self._judged_steps = Path(run_dir), judged_steps
        self.logs = WatchLogs(run_dir)
        self._files: tuple[tuple[str, int, int], ...] = ()
        self._verdict: HangVerdict | None = None
        self._dumped_at: dict[int, int] = {}

    def read(self) -> JobState:
        """The state now."""
        self.logs.look()
        status = read_status(self._run_dir, self.logs, self._judged_steps)
        self._look_for_hang()
        verdict = self._verdict if self._verdict is not None and self._verdict.found else None
        return JobState(status, verdict, verdict is not None and not self._is_over())

    def _look_for_hang(self) -> None:
        folder = self._run_dir / HANG_FOLDER
        try:
            with os.scandir(folder) as entries:
                stats = [(each.name, each.stat()) for each in entries if each.name.endswith(".json")]
        except OSError:
            return
        files = tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))
        if files == self._files:
            return
        self._files = files
        try:
            found = find_dumps([folder])
        except NoDumpsError:
            self._verdict = None
            return
        self._verdict = diagnose(found.dumps, found.heartbeats, found.problems)
        self._dumped_at = {dump.rank: dump.time_ns for dump in found.dumps if dump.rank is not None}

    def _is_over(self) -> bool:
        logs = self.logs.latest()
        ends = {rank: log.steps[-1].start_ns + log.steps[-1].ns for rank, log in logs.items() if log.steps}
        return bool(self._dumped_at) and all(ends.get(rank, 0) > at for rank, at in self._dumped_at.items())

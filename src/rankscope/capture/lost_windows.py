"""Windows that are not there, and why: in the rank's manifest, and warned of, once for each kind of reason."""

from __future__ import annotations

from rankscope.capture.notices import warn
from rankscope.capture.ranklog import RankLog
from rankscope.capture.schedule import Window


class Losses:
    """What a profiler has lost since its start. Also in the writer's thread, and after the end of the capture."""

    def __init__(self) -> None:
        self._log: RankLog | None = None
        self.any = False
        """Whether anything was lost."""

    def begin(self, log: RankLog) -> None:
        """A profiler starts."""
        self._log, self.any = log, False

    def failed(self, first: int | None, last: int | None, error: BaseException, what: str) -> None:
        """Steps ``first`` to ``last`` are lost because ``what`` raised ``error``; the job goes on."""
        reason = f"{type(error).__name__}: {error}"
        if self._log is None:
            warn(f"the capture failed ({what}): {reason}; the job goes on without it")
            return
        self.any = True
        self._log.failed(first, last, reason)
        lost = f"steps {first} to {last} were lost ({what})"
        self._log.warn_once(f"failed {what}", f"{lost}: {reason}; the job goes on")

    def skipped(self, window: Window, reason: str) -> None:
        """A window is not recorded, and nothing is wrong."""
        if self._log is not None:
            self.any = True
            self._log.skipped(window.first, window.last, reason)
            self._log.warn_once(reason, f"steps {window.first} to {window.last} were not recorded: {reason}")

    def too_short(self, steps: int, window: Window | None) -> None:
        """The loop ended after so many steps, before a window was complete; a loss that was told of says enough."""
        if self._log is None or self.any:
            return
        first, last = (window.first, window.last) if window is not None else (None, None)
        reason = f"the loop ended after {steps} steps, before step {first} was complete"
        self._log.skipped(first, last, reason)
        advice = "choose a smaller wait or warmup, or make more steps"
        self._log.warn_once("short", f"no trace was written: {reason}; {advice}")

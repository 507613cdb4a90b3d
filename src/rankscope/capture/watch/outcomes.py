"""The outcome of requested windows according to this rank's manifest: recorded, or why not.

In: windows, and the manifest. Out: an outcome for each, once.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.capture.watch.requests import Planned
from rankscope.rundir.manifest import LostWindow, RankManifest, WrittenTrace
from rankscope.rundir.schedule import Window

_LATE_STEPS = 32
"""For so many steps after its last one, a window may still wait for pending collectives."""
NO_RECORDING = "the capture on this rank has ended"


@dataclass(frozen=True)
class Settled:
    """A window of which the outcome is known."""

    planned: Planned
    window: Window
    lost: str = ""
    """Why it was not recorded; empty if it was."""


class Outcomes:
    """The requested windows of one rank whose outcome is not known yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Planned, Window, frozenset[int]]] = []

    def add(self, planned: Planned, manifest: RankManifest) -> None:
        """A window that the loop gets."""
        if planned.window is not None:
            # Another profiler of this process may have had the same steps.
            before = frozenset(map(id, _entries(manifest, planned.window)))
            self._waiting.append((planned, planned.window, before))

    def settle(self, manifest: RankManifest, step: int, *, busy: bool) -> list[Settled]:
        """The outcomes that became known since the last call.

        Args:
            manifest: as it is now.
            step: the current step.
            busy: whether something is being recorded or written.
        """
        found = []
        for each in list(self._waiting):
            planned, window, before = each
            entries = [entry for entry in _entries(manifest, window) if id(entry) not in before]
            if entries:
                lost = [entry for entry in entries if isinstance(entry, LostWindow)]
                found.append(Settled(planned, window, lost[-1].reason or "unknown" if lost else ""))
            elif step > window.last + _LATE_STEPS and not busy:
                found.append(Settled(planned, window, NO_RECORDING))
            else:
                continue
            self._waiting.remove(each)
        return found

    def not_begun(self, step: int) -> list[Window]:
        """The windows that were still to come in this step."""
        return [window for _, window, _ in self._waiting if window.warmup > step]


def _entries(manifest: RankManifest, window: Window) -> list[WrittenTrace | LostWindow]:
    """What the manifest has of a window."""
    every: tuple[WrittenTrace | LostWindow, ...] = (*manifest.written, *manifest.skipped, *manifest.failed)
    return [each for each in every if each.first_step == window.first]

"""Other torch profilers of this process. Torch can run one at a time: a second ends in a crash of the first, so the
job's own always wins.

Torch says neither who is in its warm-up nor who records on all threads, and starts a second profiler without a word.
So the one place that every profiler passes is watched: ``torch.autograd.profiler.profile._prepare_trace``. It has no
public name; where it is gone, what torch can say has to be enough.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch


class Ours(Protocol):
    """A recording of ours that is warming up, running or being stopped."""

    def make_way(self) -> None:
        """End at once, without a trace, before another profiler starts."""


_held_by: list[Ours] = []
"""The recording of ours that torch is busy with; never more than one."""
_preparing: list[object] = []
"""Not empty while a profiler of ours is being prepared."""
_theirs: weakref.ref[Any] | None = None
"""The last profiler that the job itself prepared."""


def hold(recording: Ours) -> None:
    """From here on torch is busy with ``recording``."""
    _held_by.append(recording)


def release(recording: Ours) -> None:
    """Torch is free again."""
    with suppress(ValueError):
        _held_by.remove(recording)


def prepare(action: Callable[[], None]) -> None:
    """Prepare a profiler of ours."""
    _preparing.append(action)
    try:
        action()
    finally:
        _preparing.remove(action)


def another_profiler_runs() -> bool:
    """Whether a profiler warms up or records in this thread or process: the job's own, or one more of ours."""
    if _held_by:
        return True
    theirs = _theirs() if _theirs is not None else None
    if theirs is not None and getattr(theirs, "entered", False) and getattr(theirs, "kineto_results", None) is None:
        return True
    # Neither has a public name. Where they are gone, a second profiler is found out by torch itself.
    in_thread = getattr(torch.autograd, "_profiler_enabled", None)
    in_process = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(in_process) or bool(callable(in_thread) and in_thread())


def watch() -> None:
    """Begin to notice profilers of the job, once for the process."""
    kind: Any = torch.autograd.profiler.profile
    original = getattr(kind, "_prepare_trace", None)
    if original is None or hasattr(original, "_rankscope"):
        return

    @functools.wraps(original)
    def noticed(self: Any, *args: Any, **options: Any) -> Any:
        global _theirs
        if not _preparing:
            for recording in list(_held_by):
                # Whatever goes wrong in ours, theirs starts.
                with suppress(Exception):
                    recording.make_way()
            _theirs = weakref.ref(self)
        return original(self, *args, **options)

    noticed._rankscope = True  # type: ignore[attr-defined]
    kind._prepare_trace = noticed

"""Other torch profilers in this process. Torch can run only one: starting a second crashes the first, so the job's own
always has priority.

Torch reports neither a profiler in its warm-up nor one that records all threads, and starts a second profiler without
complaint. So the one method that every profiler calls is watched: ``torch.autograd.profiler.profile._prepare_trace``.
It has no public name; in a torch without it, only what torch reports is known.

In: the starts of torch profilers. Out: calls that end rankscope's recording before another one starts.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch


class OwnRecording(Protocol):
    """A recording by rankscope that is warming up, running or being stopped."""

    def preempt(self) -> None:
        """Stop before another profiler starts."""


_active: list[OwnRecording] = []
"""The recording by rankscope that torch is busy with; never more than one."""
_preparing: list[object] = []
"""Not empty while rankscope prepares a profiler."""
_job_profiler: weakref.ref[Any] | None = None
"""The last profiler that the job itself prepared."""
_on_script_profiler: list[Callable[[], None]] = []


def acquire(recording: OwnRecording) -> None:
    """From here on torch is busy with ``recording``."""
    _active.append(recording)


def release(recording: OwnRecording) -> None:
    """Torch is free again."""
    with suppress(ValueError):
        _active.remove(recording)


def prepare(action: Callable[[], None]) -> None:
    """Prepare a profiler of rankscope's by calling ``action``."""
    import_before_recording()
    _preparing.append(action)
    try:
        # Before 2.12, torch warns once in each process of what does not concern it; it would fail where warnings are
        # errors. What other threads warn of meanwhile is still shown.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(Warning: )?Profiler clears events")
            action()
    finally:
        _preparing.remove(action)


def is_preparing() -> bool:
    """Whether the profiler that is being prepared is rankscope's."""
    return bool(_preparing)


def import_before_recording() -> None:
    """Import what the first ``record_function`` of a process would import within the recording.

    With stacks, torch records the body of a module as a call and keeps only a pointer to its name, which is freed when
    the import ends. What is there later is the event's name: any bytes, at which ``events()`` of the script's profiler
    raises ``UnicodeDecodeError`` if they are not UTF-8.
    """
    loads: Any = getattr(torch.autograd.profiler, "_maybe_cupti_monitor", None)  # torch 2.12 and older have none
    if loads is not None:
        with suppress(Exception):
            loads()


def mark_own(profile: Any) -> None:
    """``profile`` is rankscope's: what is done with the script's profilers is not for it."""
    profile._rankscope_own = True


def is_own(profile: Any) -> bool:
    """Whether a ``torch.profiler.profile`` is rankscope's."""
    return bool(getattr(profile, "_rankscope_own", False))


def another_profiler_runs() -> bool:
    """Whether a profiler warms up or records in this thread or process: the job's, or another one of rankscope's."""
    if _active:
        return True
    profile = _job_profiler() if _job_profiler is not None else None
    if profile is not None and getattr(profile, "entered", False) and getattr(profile, "kineto_results", None) is None:
        return True
    # Neither has a public name. Without them, torch itself finds a second profiler.
    in_thread = getattr(torch.autograd, "_profiler_enabled", None)
    in_process = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(in_process) or bool(callable(in_thread) and in_thread())


def script_profiler_runs() -> bool:
    """Whether a profiler of the job's own warms up or records."""
    return not _active and another_profiler_runs()


def watch() -> None:
    """Notice the job's profilers from now on; once per process."""
    kind: Any = torch.autograd.profiler.profile
    original = getattr(kind, "_prepare_trace", None)
    if original is None or hasattr(original, "_rankscope"):
        return

    @functools.wraps(original)
    def watched(self: Any, *args: Any, **options: Any) -> Any:
        global _job_profiler
        if not _preparing:
            for recording in list(_active):
                # Whatever goes wrong in ours, the job's profiler starts.
                with suppress(Exception):
                    recording.preempt()
            _job_profiler = weakref.ref(self)
        return original(self, *args, **options)

    watched._rankscope = True  # type: ignore[attr-defined]  # a mark of ours
    kind._prepare_trace = watched


def before_script_profiler(action: Callable[[], None]) -> None:
    """Call ``action`` before a ``Profiler`` that the script itself made starts."""
    _on_script_profiler.append(action)


def script_profiler_starts() -> None:
    """The script starts a ``Profiler`` of its own: the automatic one ends."""
    for action in _on_script_profiler:
        action()

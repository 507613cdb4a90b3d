"""Where a recording is stopped and saved: in the training loop, or off it. Found out by trying, not by version.

Off the loop is for where torch lets other threads run while it stops (2.14 and newer). Elsewhere a thread would hold
the loop up all the same, and longer; and a torch that does not let them run has not learnt to stop beside them either:
an operator that another thread is in while a recording of all threads is stopped writes to what was freed (mended in
pytorch #187141, #187483 and #188172, of which the second came before, and for, the letting run of #187594). So nothing
but that decides, not even ``always``.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from rankscope.capture import profiler_conflicts
from rankscope.rundir.config import CaptureConfig

LOOP, THREAD = "loop", "thread"
_TRIED = (0, 300, 1000, 3000)
"""Operators in the recordings that are stopped to try it out."""
_PATIENCE_S = 0.5
"""How long a thread waits for the interpreter, while it is tried out, before whoever has it must make way: much longer
than such a stop takes, and not so long that a busy thread of the job holds the loop up."""
_releases: bool | None = None


def choose_way(config: CaptureConfig, activities: Sequence[torch.profiler.ProfilerActivity]) -> tuple[str, str]:
    """``loop`` or ``thread``, and why."""
    if config.stop_off_loop == "never":
        return LOOP, "asked for"
    if config.profile_memory:
        return LOOP, "torch loses memory events where another thread stops it"
    try:
        all_threads()
    except (ImportError, AttributeError, TypeError):
        return LOOP, "this torch stops a recording only in the thread that began it"
    if not hasattr(torch.profiler.profile, "toggle_collection_dynamic"):
        return LOOP, "this torch cannot end a recording without stopping it"
    asked = config.stop_off_loop == "always"
    if not asked and any(activity is not torch.profiler.ProfilerActivity.CPU for activity in activities):
        return LOOP, "an accelerator is recorded"
    if not _lets_others_run():
        return LOOP, "torch holds other threads up while it stops"
    return THREAD, "asked for" if asked else "torch lets other threads run while it stops"


def _lets_others_run() -> bool:
    global _releases
    if _releases is None:
        # Of an accelerator's recording the stop is the same, and nothing is woken for the trial.
        kinds = [torch.profiler.ProfilerActivity.CPU]
        try:
            # On a busy machine the other thread may come too late for a short stop, and a third one may make way for
            # it by chance: seen among a few, and once more.
            _releases = any(stop_releases_others(kinds, operators) for operators in _TRIED) and any(
                stop_releases_others(kinds, operators) for operators in _TRIED[1:]
            )
        except Exception:
            _releases = False
    return _releases


def all_threads() -> Any:
    """The setting with which a recording can be stopped in another thread than it was started in.

    Raises:
        ImportError, AttributeError, TypeError: this torch has none.
    """
    return import_module("torch._C._profiler")._ExperimentalConfig(profile_all_threads=True)


def settings(config: CaptureConfig, *, off_loop: bool) -> Any:
    """Torch's experimental settings for a recording; ``None`` where there is nothing to set.

    Without stacks, torch is told to leave out what its ``events()`` would need and the trace does not (``trace_only``,
    2.13 and newer): a quarter of the stop, and most of the freeing.

    Raises:
        ImportError, AttributeError, TypeError: ``off_loop`` is asked for, and this torch has no such setting.
    """
    wanted = {"profile_all_threads": True} if off_loop else {}
    kind: Any = getattr(import_module("torch._C._profiler"), "_ExperimentalConfig", None)
    if not (config.with_stack or config.with_modules):
        try:
            return kind(**wanted, trace_only=True)
        except TypeError:
            pass  # an older torch, or one without any such settings
    return kind(**wanted) if wanted else None


def stop_releases_others(activities: Sequence[torch.profiler.ProfilerActivity], operators: int = 0) -> bool:
    """Whether other Python threads run while torch stops a recording: tried out with one of so many operators.

    Another thread waits to run, and for so long as this takes nobody is made to give way to it: it runs in the
    middle of the stop, or after it. A stop that takes long, on a busy machine, shows nothing.
    """
    ran: list[bool] = []
    gate, there = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        there.set()
        with gate:
            ran.append(True)

    profile: Any = torch.profiler.profile(activities=list(activities))
    profiler_conflicts.prepare(profile.prepare_trace)
    profile.start_trace()
    stopped = False
    usual = sys.getswitchinterval()
    collecting = gc.isenabled()
    gc.disable()
    # Before the other thread begins: one that is already waiting with the usual interval, because it was held up on its
    # way to the gate, would be made way for in the middle of any stop.
    sys.setswitchinterval(_PATIENCE_S)
    try:
        small = torch.zeros(1)
        for _ in range(operators):
            torch.neg(small)
        threading.Thread(target=other, name="rankscope-probe", daemon=True).start()
        there.wait(1.0)
        began = time.perf_counter()
        gate.release()
        stopped = True
        profile.stop_trace()
        # After a longer stop, it may have been made way for.
        return bool(ran) and time.perf_counter() - began < _PATIENCE_S / 2
    finally:
        if not stopped:
            profile.stop_trace()  # one that is left running crashes the process at its exit
        sys.setswitchinterval(usual)
        if collecting:
            gc.enable()
        profile.profiler = None

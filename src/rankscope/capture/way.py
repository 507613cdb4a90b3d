"""Where a recording is stopped and saved: in the training loop, or off it. Found out by trying, not by version.

Off the loop is for where torch lets other threads run while it stops (2.14 and newer). Elsewhere a thread would hold
the loop up all the same, and longer.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from rankscope.capture import rivals
from rankscope.rundir.config import CaptureConfig

LOOP, THREAD = "loop", "thread"
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
    if config.stop_off_loop == "always":
        return THREAD, "asked for"
    if any(activity is not torch.profiler.ProfilerActivity.CPU for activity in activities):
        return LOOP, "an accelerator is recorded"
    global _releases
    if _releases is None:
        try:
            _releases = any(stop_releases_others(activities) for _ in range(2))
        except Exception:
            _releases = False
    if _releases:
        return THREAD, "torch lets other threads run while it stops"
    return LOOP, "torch holds other threads up while it stops"


def all_threads() -> Any:
    """The setting with which a recording can be stopped in another thread than it was started in.

    Raises:
        ImportError, AttributeError, TypeError: this torch has none.
    """
    return import_module("torch._C._profiler")._ExperimentalConfig(profile_all_threads=True)


def stop_releases_others(activities: Sequence[torch.profiler.ProfilerActivity]) -> bool:
    """Whether other Python threads run while torch stops a recording: tried out with a recording of nothing.

    Another thread waits to run, and for so long as this takes nobody is made to give way to it: it runs in the
    middle of the stop, or after it.
    """
    ran: list[bool] = []
    gate, there = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        there.set()
        with gate:
            ran.append(True)

    profile: Any = torch.profiler.profile(activities=list(activities))
    rivals.prepare(profile.prepare_trace)
    profile.start_trace()
    waiting = threading.Thread(target=other, name="rankscope-probe", daemon=True)
    waiting.start()
    there.wait(1.0)
    usual = sys.getswitchinterval()
    collecting = gc.isenabled()
    gc.disable()
    sys.setswitchinterval(1e3)
    try:
        gate.release()
        profile.stop_trace()
        return bool(ran)
    finally:
        sys.setswitchinterval(usual)
        if collecting:
            gc.enable()
        profile.profiler = None

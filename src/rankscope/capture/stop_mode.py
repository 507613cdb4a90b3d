"""Decides by a trial whether recordings are stopped and saved in the training loop or off it.

Stopping off the loop pays only if torch lets other threads run meanwhile (2.14 and newer). With other versions the
thread would block the loop anyway, and for longer; and a torch without that is not safe to stop while other threads run
operators: an operator that another thread is in while a recording of all threads is stopped writes into freed memory
(fixed in pytorch by #187141, #187483 and #188172; #187594, which releases the interpreter, came after the second and
was made for it). So the trial decides, and overrides even ``always``. Torch before 2.14 needs none: no release of it
has the change, and each trial recording would print Kineto's lines (``USDT: … profiler_start``) among the job's own.

In: torch, and the option ``stop_off_loop``. Out: where to stop, and why.
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

from rankscope.capture.script_profilers import conflicts
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.versions import release

LOOP, THREAD = "loop", "thread"
_TRIAL_OPERATORS = (0, 300, 1000, 3000)
"""How many operators are in the recordings that are stopped for the trial."""
_SWITCH_INTERVAL_S = 0.5
"""How long a thread waits for the interpreter during the trial before the holder must release it: much longer than such
a stop takes, and short enough that a busy thread of the job does not delay the loop."""
_FIRST_RELEASE = (2, 14)
"""The first torch that may let other threads run: #187594 is in it."""
_releases: bool | None = None


def choose_stop_mode(config: CaptureConfig, activities: Sequence[torch.profiler.ProfilerActivity]) -> tuple[str, str]:
    """``loop`` or ``thread``, and the reason."""
    if config.stop_off_loop == "never":
        return LOOP, "requested"
    if config.profile_memory:
        return LOOP, "torch loses memory events when another thread stops it"
    try:
        all_threads_config()
    except (ImportError, AttributeError, TypeError):
        return LOOP, "this torch stops a recording only in the thread that began it"
    if not hasattr(torch.profiler.profile, "toggle_collection_dynamic"):
        return LOOP, "this torch cannot end a recording without stopping it"
    requested = config.stop_off_loop == "always"
    if not requested and any(activity is not torch.profiler.ProfilerActivity.CPU for activity in activities):
        return LOOP, "an accelerator is recorded"
    if not other_threads_run():
        return LOOP, "torch blocks other threads while it stops"
    return THREAD, "requested" if requested else "torch lets other threads run while it stops"


def other_threads_run() -> bool:
    """Whether this torch lets other threads run while it stops; tried out at the first call, if it may."""
    global _releases
    if _releases is None and release(torch.__version__)[:2] < _FIRST_RELEASE:
        _releases = False
    if _releases is None:
        # With an accelerator the stop is the same, and none has to be woken for the trial.
        kinds = [torch.profiler.ProfilerActivity.CPU]
        try:
            # On a busy machine the other thread may come too late for a short stop, and by chance a third one may
            # give way to it: it must run during one of several stops, and then during another.
            _releases = any(other_threads_run_during_stop(kinds, operators) for operators in _TRIAL_OPERATORS) and any(
                other_threads_run_during_stop(kinds, operators) for operators in _TRIAL_OPERATORS[1:]
            )
        except Exception:
            _releases = False
    return _releases


def all_threads_config() -> Any:
    """The setting with which a recording can be stopped in another thread than it was started in.

    Raises:
        ImportError, AttributeError, TypeError: this torch has none.
    """
    return import_module("torch._C._profiler")._ExperimentalConfig(profile_all_threads=True)


def experimental_config(config: CaptureConfig, *, off_loop: bool) -> Any:
    """Torch's experimental settings for a recording; ``None`` if there is nothing to set.

    Without stacks, torch leaves out what only its ``events()`` needs and the trace does not (``trace_only``, 2.13 and
    newer): this saves a quarter of the stop and most of the freeing.

    Raises:
        ImportError, AttributeError, TypeError: ``off_loop`` is set, and this torch has no such setting.
    """
    wanted = {"profile_all_threads": True} if off_loop else {}
    kind: Any = getattr(import_module("torch._C._profiler"), "_ExperimentalConfig", None)
    if not (config.with_stack or config.with_modules):
        try:
            return kind(**wanted, trace_only=True)
        except TypeError:
            pass  # an older torch, or one without any such settings
    return kind(**wanted) if wanted else None


def other_threads_run_during_stop(activities: Sequence[torch.profiler.ProfilerActivity], operators: int = 0) -> bool:
    """Whether other Python threads run while torch stops a recording of ``operators`` operators.

    Another thread waits for the interpreter, with a switch interval so long that it is never released for its sake: the
    thread runs either in the middle of the stop or after it. A stop that takes long, on a busy machine, proves nothing.
    """
    ran: list[bool] = []
    gate, ready = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        ready.set()
        with gate:
            ran.append(True)

    profile: Any = torch.profiler.profile(activities=list(activities))
    conflicts.mark_own(profile)
    conflicts.prepare(profile.prepare_trace)
    profile.start_trace()
    stopped = False
    usual = sys.getswitchinterval()
    collecting = gc.isenabled()
    gc.disable()
    # Before the other thread starts: a thread that already waits with the usual interval, because it was delayed on its
    # way to the gate, would get the interpreter in the middle of any stop.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        small = torch.zeros(1)
        for _ in range(operators):
            torch.neg(small)
        threading.Thread(target=other, name="rankscope-probe", daemon=True).start()
        ready.wait(1.0)
        began = time.perf_counter()
        gate.release()
        stopped = True
        profile.stop_trace()
        # After a longer stop, the interpreter may have been released for it.
        return bool(ran) and time.perf_counter() - began < _SWITCH_INTERVAL_S / 2
    finally:
        if not stopped:
            profile.stop_trace()  # one that is left running crashes the process at its exit
        sys.setswitchinterval(usual)
        if collecting:
            gc.enable()
        profile.profiler = None

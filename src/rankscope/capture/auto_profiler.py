"""Profiling a job whose script knows nothing of it: a step is over when the optimizer has made its own.

Of several optimizers one is counted (``optimizers``).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankscope.capture.notices import warn
from rankscope.capture.optimizers import Primary, watch_steps
from rankscope.rundir.names import RUN_MANIFEST

_loaded_at = time.time()

NEVER_STEPPED = """\
rankscope: no trace was written: this job loaded torch and made no optimizer step.
  → A job without a torch.optim.Optimizer is profiled by a rankscope.Profiler around its loop, with .step() in it.
"""


class _Counter:
    def __init__(self) -> None:
        self.profiler: Any = None
        self.made_ns = time.perf_counter_ns()
        self.primary = Primary()
        self.steps = 0
        self.aside = False

    def stepped(self, optimizer: object) -> None:
        """The outermost step of an optimizer is over."""
        self.steps += 1
        if self.aside:
            return
        if not self.primary.counts(optimizer):
            return
        if self.profiler is None:
            self._start()
        else:
            self.profiler.step()

    def _start(self) -> None:
        from rankscope.capture.profiler import Profiler

        try:
            self.profiler = Profiler()
            # The process group is there by now, and the first step, which compiles and allocates, is over. It is taken
            # to have begun when the first optimizer was made.
            self.profiler.start(1, first_began_ns=self.made_ns)
        except Exception as error:
            self.aside = True
            warn(f"this job is not profiled: {error}")


_counter = _Counter()


def install(module: Any) -> None:
    """Count the steps of all optimizers of this process.

    Args:
        module: ``torch.optim.optimizer``, just loaded.
    """
    watch_steps(module, _stepped, wrapped=_made)
    atexit.register(_tell_if_never_stepped, os.getpid())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _stepped(optimizer: object) -> None:
    _counter.stepped(optimizer)  # of this process: a fork has one of its own


def _made() -> None:
    if not _counter.steps:
        _counter.made_ns = time.perf_counter_ns()


def stand_aside() -> None:
    """The script has a profiler of ours of its own: what is counted here no longer matters."""
    _counter.aside = True
    profiler, _counter.profiler = _counter.profiler, None
    if profiler is not None:
        profiler.stop()


def _in_child() -> None:
    global _counter
    # Workers of a loader never step; ranks that were forked by the script do, unless their parent has.
    aside = _counter.aside or _counter.profiler is not None
    _counter = _Counter()
    _counter.aside = aside


def _tell_if_never_stepped(pid: int) -> None:
    if _counter.steps or _counter.aside or os.getpid() != pid:
        return
    # torchrun itself loads torch and trains nothing; so do processes that multiprocessing spawned.
    launcher = "torch.distributed.elastic.agent.server.api" in sys.modules
    spawned = any("multiprocessing" in word for word in sys.orig_argv[1:])
    if not launcher and not spawned and os.environ.get("RANK", "0") == "0" and not _others_wrote():
        sys.stderr.write(NEVER_STEPPED)


def _others_wrote() -> bool:
    """Whether the ranks that this process started (``torch.multiprocessing.spawn``) have begun a run meanwhile."""
    wanted = os.environ.get("RANKSCOPE_RUN_DIR")
    with suppress(OSError):
        for folder in [Path(wanted)] if wanted else Path().glob("rankscope_run_*"):
            manifest = folder / RUN_MANIFEST
            if manifest.exists() and manifest.stat().st_mtime >= _loaded_at:
                return True
    return False

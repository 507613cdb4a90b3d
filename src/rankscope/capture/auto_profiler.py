"""Profiles a job whose script does not use rankscope: each step of the training's optimizer is a step.

``install`` is called by the hook (``hook/sitecustomize.py``) and starts a ``Profiler`` that takes its options from the
environment. If the script has a profiler of its own, that one is used instead. ``optimizers`` decides which steps
count.

In: the options in the environment, and the steps of the optimizers. Out: a started `Profiler`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.capture import profiler_conflicts
from rankscope.capture.notices import warn
from rankscope.capture.optimizers import PrimaryOptimizer, watch_steps
from rankscope.rundir.names import RUN_MANIFEST
from rankscope.rundir.schedule import AUTO_START_STEP

if TYPE_CHECKING:
    from rankscope.capture.profiler import Profiler

_loaded_at = time.time()

NEVER_STEPPED = """\
rankscope: no trace was written: this job loaded torch and made no optimizer step.
  → To profile a job without a torch.optim.Optimizer, put a rankscope.Profiler around its loop and call .step() in it.
"""


class _StepCounter:
    """Counts this process's optimizer steps and drives its profiler."""

    def __init__(self) -> None:
        self.profiler: Profiler | None = None
        self.first_optimizer_ns = time.perf_counter_ns()
        self.primary = PrimaryOptimizer()
        self.steps = 0
        self.disabled = False

    def after_step(self, optimizer: object) -> None:
        """The outermost step of an optimizer is over."""
        self.steps += 1
        if self.disabled:
            return
        if not self.primary.counts(optimizer):
            return
        if self.profiler is None:
            self._start()
        else:
            self.profiler.step()

    def _start(self) -> None:
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            # It may train before the rank makes its first step, and owns the rank.
            self.disabled = True
            warn(f"process {os.getpid()} is not profiled: it is a worker of a data loader")
            return
        try:
            # Not at the top: a script that imports rankscope.Profiler first loads torch, and with it this module, from
            # there.
            from rankscope.capture.profiler import Profiler

            self.profiler = Profiler()
            # By now the process group exists, and the first step, which compiles and allocates, is over. It is taken
            # to have begun when the first optimizer was created.
            self.profiler.start(AUTO_START_STEP, first_began_ns=self.first_optimizer_ns)
        except Exception as error:
            self.disabled = True
            warn(f"this job is not profiled: {error}")

    def disable(self) -> None:
        """The script has a ``Profiler`` of its own: stop counting."""
        self.disabled = True
        profiler, self.profiler = self.profiler, None
        if profiler is not None:
            profiler.stop()


_counter = _StepCounter()


def install(module: Any) -> None:
    """Count the steps of all optimizers of this process.

    Args:
        module: ``torch.optim.optimizer``, just loaded.
    """
    watch_steps(module, _after_step, wrapped=_optimizer_created)
    profiler_conflicts.before_script_profiler(_disable)
    atexit.register(_warn_if_never_stepped, os.getpid())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_in_child)


# A forked process has its own counter, so it is looked up at each call.


def _after_step(optimizer: object) -> None:
    _counter.after_step(optimizer)


def _disable() -> None:
    _counter.disable()


def _optimizer_created() -> None:
    if not _counter.steps:
        _counter.first_optimizer_ns = time.perf_counter_ns()


def _reset_in_child() -> None:
    global _counter
    disabled = _counter.disabled
    _counter = _StepCounter()
    _counter.disabled = disabled


def _warn_if_never_stepped(pid: int) -> None:
    if _counter.steps or _counter.disabled or os.getpid() != pid:
        return
    # torchrun itself loads torch and trains nothing; so do processes that multiprocessing has spawned.
    launcher = "torch.distributed.elastic.agent.server.api" in sys.modules
    spawned = any("multiprocessing" in word for word in sys.orig_argv[1:])
    if not launcher and not spawned and os.environ.get("RANK", "0") == "0" and not _a_child_wrote():
        sys.stderr.write(NEVER_STEPPED)


def _a_child_wrote() -> bool:
    """Whether ranks that this process started (``torch.multiprocessing.spawn``) have begun a run meanwhile."""
    run_dir = os.environ.get("RANKSCOPE_RUN_DIR")
    with suppress(OSError):
        for folder in [Path(run_dir)] if run_dir else Path().glob("rankscope_run_*"):
            manifest = folder / RUN_MANIFEST
            if manifest.exists() and manifest.stat().st_mtime >= _loaded_at:
                return True
    return False

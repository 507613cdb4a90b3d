"""Profiling a job whose script knows nothing of it: a step is over when the optimizer has made its own.

Torch wraps the ``step`` of every optimizer by ``Optimizer.profile_hook_step``. That is wrapped once more here: the
public hook runs inside torch's own range of the step, which would cross ours. Of several optimizers one is counted, and
of steps within steps (ZeRO, a wrapper around an optimizer) the outermost. With gradient accumulation a step is the
optimizer's.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankscope.capture.notices import warn
from rankscope.capture.optimizers import Primary
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
        self.depth = self.steps = 0
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
    kind = module.Optimizer
    original: Callable[..., Any] = kind.profile_hook_step

    @functools.wraps(original)
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = original(func)
        if not _counter.steps:
            _counter.made_ns = time.perf_counter_ns()  # torch comes here at the first optimizer of each kind

        @functools.wraps(step)
        def counted(*args: Any, **options: Any) -> Any:
            counter = _counter
            counter.depth += 1
            try:
                result = step(*args, **options)
            finally:
                counter.depth -= 1
            if counter.depth == 0:
                counter.stepped(args[0])
            return result

        return counted

    kind.profile_hook_step = staticmethod(profile_hook_step)
    atexit.register(_tell_if_never_stepped, os.getpid())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


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

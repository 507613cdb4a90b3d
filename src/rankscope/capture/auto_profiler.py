"""Profiles a job whose script does not use rankscope: each step of the training's optimizer is a step.

``install`` is called by the hook (``hook/sitecustomize.py``) and starts a ``Profiler`` that takes its options from the
environment. If the script has a ``rankscope.Profiler``, that one is used instead; torch profilers of the script
are adopted, or taken over (`script_profilers`). ``optimizers`` decides which steps count.

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

from rankscope.capture.attempts import earlier_starts
from rankscope.capture.notices import warn
from rankscope.capture.optimizers import PrimaryOptimizer, watch_steps
from rankscope.capture.script_profilers import conflicts, interception
from rankscope.capture.script_profilers.adopted_window import AdoptedWindow
from rankscope.capture.startup import StartupWatch, options, watch_process_group
from rankscope.rundir.capture_files import BY_RUN, HOOK_VARIABLE
from rankscope.rundir.manifest import ScriptProfiler
from rankscope.rundir.names import RUN_MANIFEST
from rankscope.rundir.schedule import AUTO_START_STEP

if TYPE_CHECKING:
    from rankscope.capture.script_profilers.adoption import AdoptingProfiler

_loaded_at = time.time()

NEVER_STEPPED = """\
rankscope: no trace was written: this job loaded torch and made no optimizer step.
  → To profile a job without a torch.optim.Optimizer, put a rankscope.Profiler around its loop and call .step() in it.
"""


NOT_ADOPTED = "rankscope: no trace was written. The script's own profiler: {profilers}\n"


class _StepCounter:
    """Counts this process's optimizer steps and drives its profiler."""

    def __init__(self) -> None:
        self.profiler: AdoptingProfiler | None = None
        self.first_optimizer_ns = time.perf_counter_ns()
        self.primary = PrimaryOptimizer()
        self.steps = 0
        self.disabled = False
        self.script_has_profiler = False
        self.own_profilers: dict[str, list[str]] = {}
        self.startup = StartupWatch()

    def after_step(self, optimizer: object) -> None:
        """The outermost step of an optimizer is over."""
        self.steps += 1
        if self.disabled:
            return
        if not self.primary.counts(optimizer):
            return
        interception.training_stepped()
        if self.profiler is None:
            self.startup.end()
            self._start()
        else:
            if self.primary.changed:
                self.profiler.leave_out_step()
            self.profiler.step()
            self.profiler.after_step(interception.any_open())

    def _make_profiler(self, *, deferring: bool) -> AdoptingProfiler | None:
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            # It may train before the rank makes its first step, and owns the rank.
            self.disabled = True
            warn(f"process {os.getpid()} is not profiled: it is a worker of a data loader")
            return None
        # Not at the top: a script that imports rankscope.Profiler first loads torch, and with it this module, from
        # there.
        from rankscope.capture.script_profilers.adoption import AdoptingProfiler

        return AdoptingProfiler(deferring=deferring)

    def _start(self) -> None:
        try:
            self.profiler = self._make_profiler(deferring=interception.any_open())
            if self.profiler is None:
                return
            # By now the process group exists, and the first step, which compiles and allocates, is over. It is taken
            # to have begun when the first optimizer was created.
            self.profiler.start(AUTO_START_STEP, first_began_ns=self.first_optimizer_ns)
            self.profiler.after_step(interception.any_open())
        except Exception as error:
            self.disabled = True
            warn(f"this job is not profiled: {error}")

    def disable(self) -> None:
        """The script has a ``Profiler`` of its own: stop counting."""
        self.disabled = self.script_has_profiler = True
        self.startup.end()
        profiler, self.profiler = self.profiler, None
        if profiler is not None:
            profiler.stop()

    # --- profilers of the script (`interception.Adopter`) -----------------------------------------

    def window(self, profile: Any, owner: Any, source: str) -> AdoptedWindow | None:
        """A profiler of the script begins its warm-up."""
        self.own_profilers.setdefault(source, [])
        if self.profiler is None and not self.disabled:
            self.startup.end()
            try:
                self.profiler = self._make_profiler(deferring=True)
                if self.profiler is not None:
                    self.profiler.start_before_first_step()
            except Exception as error:
                self.disabled = True
                warn(f"this job is not profiled: {error}")
        return self.profiler.adopted_window(profile, owner, source) if self.profiler is not None else None

    def begin(self, window: AdoptedWindow) -> None:
        """It begins to record."""
        if self.profiler is not None:
            self.profiler.begin_adopted(window)

    def end(self, window: AdoptedWindow, in_step_call: bool) -> None:
        """It has stopped."""
        if self.profiler is not None:
            self.profiler.end_adopted(window, in_step_call)

    def exported(self, source: str, path: str) -> None:
        """The script exports a trace."""
        self.own_profilers.setdefault(source, []).append(path)
        if self.profiler is not None:
            self.profiler.note_export(source, path)

    def not_adopted(self) -> list[ScriptProfiler]:
        """The script's own profilers, if nothing was written."""
        if self.profiler is not None:
            return list(self.profiler.script_profilers)
        return [ScriptProfiler(name, "not adopted", tuple(paths[-5:])) for name, paths in self.own_profilers.items()]


_counter = _StepCounter()


class _CurrentCounter:
    """The counter of this process: a forked one has its own, so it is looked up at each call."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_counter, name)


def install(module: Any) -> None:
    """Count the steps of all optimizers of this process.

    Args:
        module: ``torch.optim.optimizer``, just loaded.
    """
    earlier_starts()  # notes this one, which may end before its first step
    watch_steps(module, _after_step, wrapped=_optimizer_created)
    conflicts.before_script_profiler(_disable)
    config = options()
    if config.watch and config.hang_timeout:
        watch_process_group(lambda: _counter.startup)
    if config.take_over:
        interception.take_over()
    else:
        adopter: Any = _CurrentCounter()
        interception.adopt(adopter)
    atexit.register(_warn_if_nothing_written, os.getpid())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_in_child)


def _after_step(optimizer: object) -> None:
    try:
        _counter.after_step(optimizer)
    except Exception as error:  # an error here would be one of the job's optimizer
        _counter.disabled = True
        warn(f"this job is no longer profiled: {type(error).__name__}: {error}")


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
    interception.forget()


def _warn_if_nothing_written(pid: int) -> None:
    if os.getpid() != pid or _counter.script_has_profiler:
        return
    if not_adopted := _counter.not_adopted():
        # `rankscope run` says it itself, as its last line.
        if os.environ.get("RANK", "0") == "0" and os.environ.get(HOOK_VARIABLE) != BY_RUN:
            sys.stderr.write(NOT_ADOPTED.format(profilers="; ".join(map(str, not_adopted))))
        return
    if _counter.steps or _counter.disabled or _counter.profiler is not None:
        return
    if getattr(sys, "last_type", None) is not None:
        return  # its exception says why
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

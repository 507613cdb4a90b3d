"""Runs a plan in a job, step by step: warm-up, then blocks of steps, each in its condition, then a recorded window.

Ranks have to change the condition at the same step, and do so without a word: all count the steps of one training and
read one plan. Before each block they meet once, so that none begins it with a lead.

This is not capture: the job is run to be measured. It ends when the plan is done, and what goes wrong ends it, too.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.capture import process as facts
from rankscope.capture.optimizers import Primary, watch_steps
from rankscope.measure.injob import conditions, wrapper_arguments
from rankscope.measure.injob.clocks import Clock, HostClock, clock_for, launch_latencies
from rankscope.measure.injob.model import Model
from rankscope.measure.injob.phases import BACKWARD, FORWARD, OPTIMIZER, PASSES, Phases
from rankscope.measure.injob.sources import own_sources
from rankscope.rundir.cpus import usable_cpus
from rankscope.rundir.measurement import (
    COMPLETE,
    EARLY,
    FAILED,
    PLAN_VARIABLE,
    Block,
    Plan,
    RankMeasurement,
    progress_path,
    read_plan,
    write_measurement,
)
from rankscope.rundir.ranges import as_ranges

_WARM_UP, _SETTLE, _COUNT, _TRACE, _OVER = range(5)
_TRACE_WARMUP = 2


class PlanRunner:
    """One job's plan, on this rank.

    Args:
        plan: what is done.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = 0
        self.by_function = False
        """Whether a step is a call of the user's function, and not the optimizer's."""
        self._sequence = [(number, name) for number, names in enumerate(plan.rounds) for name in names]
        self._at = -1
        self._state, self._left = _WARM_UP, plan.warmup
        self._clock: Clock = HostClock()
        self._phases = Phases(self._clock)
        self._model: Model | None = None
        self._conditions: dict[str, conditions.Condition] = {}
        self._condition: conditions.Condition | None = None
        self._parameters: list[torch.Tensor] = []
        self._primary = Primary()
        self._blocks: list[Block] = []
        self._began = 0.0
        self._latency: list[int] = []
        self._sources: dict[str, str] = {}
        self._profiler: Any = None
        self._pid = os.getpid()

    # -- what the job calls ---------------------------------------------------------------------------------------

    def watch_optimizers(self, module: Any) -> None:
        """Count the steps of all optimizers of this process.

        Args:
            module: ``torch.optim.optimizer``.
        """
        watch_steps(module, self._after_optimizer, self._before_optimizer)

    def step_ended(self) -> None:
        """A step of the training is over.

        Raises:
            SystemExit: the plan is done, or cannot be.
        """
        self._phases.boundary()
        self.steps += 1
        if self._state == _OVER:
            return
        try:
            over = self._advance()
        except Exception as error:
            self._state = _OVER
            self._write(FAILED, f"{type(error).__name__}: {error}")
            raise SystemExit(f"rankscope: the measurement failed: {error}") from error
        if over:
            self._state = _OVER
            self._write(COMPLETE)
            if not self.by_function:
                # Out of the script's loop, whatever it is; its `finally` and `with` blocks are run.
                raise SystemExit(0)

    def at_exit(self) -> None:
        """The script has ended; before its time, if the plan is not done."""
        if self._state != _OVER and self.steps and self._pid == os.getpid():
            self._state = _OVER
            self._write(EARLY)

    @property
    def over(self) -> bool:
        """Whether the plan is done."""
        return self._state == _OVER

    # -- steps ----------------------------------------------------------------------------------------------------

    def _before_optimizer(self, optimizer: Any) -> None:
        if self._pid != os.getpid():
            return
        if self._condition is not None:
            self._condition.before_optimizer(self._parameters)
        self._phases.begin(OPTIMIZER)

    def _after_optimizer(self, optimizer: Any) -> None:
        if self._pid != os.getpid():
            return
        self._phases.end(OPTIMIZER)
        if not self._primary.counts(optimizer):
            return
        if not self._parameters:
            self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self._condition is not None:
            self._condition.after_optimizer(self._parameters)
        if not self.by_function:
            self.step_ended()

    def _advance(self) -> bool:
        """Go on; whether all is done."""
        if self._state == _TRACE:
            self._profiler.step()
        self._left -= 1
        if self._left > 0:
            return False
        if self._state == _WARM_UP:
            self._look()
            return self._next()
        if self._state == _SETTLE:
            self._count()
            return False
        if self._state == _COUNT:
            self._end_block()
            return self._next()
        self._profiler.stop()
        self._leave()
        return True

    def _look(self) -> None:
        """Who is trained, and on what: known once the first steps are made."""
        self._sources = self._loaded()
        self._model = Model(self._parameters)
        self._clock = clock_for(self._model.device)
        self._phases = Phases(self._clock)
        self._phases.watch_forward(self._model.called)
        self._phases.watch_backward()
        self._conditions = conditions.make(self.plan.conditions, self._model, self._parameters, Path(self.plan.out))
        if self.plan.latency:
            self._latency = launch_latencies(self._model.device)
        self._began = time.monotonic()

    def _next(self) -> bool:
        """Begin the next block, or the recorded window; whether there is neither."""
        self._at += 1
        enough = self._meet() or self._at >= len(self._sequence)
        if not enough:
            round_number, name = self._sequence[self._at]
            self._say_progress(round_number)
            self._enter(name)
            self._state, self._left = _SETTLE, self.plan.settle
            if self.plan.settle == 0:
                self._count()
            return False
        if not self.plan.traced_steps:
            return True
        self._enter(self.plan.traced_condition)
        from rankscope.capture.profiler import Profiler

        self._profiler = Profiler(
            self.plan.out,
            ranks="all",
            wait=0,
            warmup=_TRACE_WARMUP,
            active=self.plan.traced_steps,
            repeat=1,
            skip_first=0,
        )
        self._profiler.start(self.steps, first_began_ns=time.perf_counter_ns())
        self._state, self._left = _TRACE, _TRACE_WARMUP + self.plan.traced_steps
        return False

    def _meet(self) -> bool:
        """All ranks come to this point, the device's work done; whether any of them says that it has been long enough.

        Only between rounds, so that each holds all conditions.
        """
        rounds = self._sequence[self._at - 1][0] + 1 if self._at > 0 else 0
        whole = self._at >= len(self._sequence) or self._sequence[self._at][0] == rounds
        late = self.plan.limit_s is not None and time.monotonic() - self._began > self.plan.limit_s
        enough = whole and late and rounds >= self.plan.least_rounds
        self._clock.settle()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            device = self._model.device if self._model is not None else torch.device("cpu")
            flag = torch.tensor([float(enough)], device=device)
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            enough = bool(flag.item())
        return enough

    def _enter(self, name: str | None) -> None:
        self._condition = self._conditions.get(name) if name is not None else None
        if self._condition is not None:
            self._condition.enter()

    def _leave(self) -> None:
        condition, self._condition = self._condition, None
        if condition is not None:
            condition.leave()

    def _count(self) -> None:
        if self._condition is not None:
            self._condition.start()
        self._state, self._left = _COUNT, self.plan.steps
        self._phases.on = True
        self._phases.boundary()

    def _end_block(self) -> None:
        self._phases.on = False
        condition = self._condition
        times = self._phases.take()
        self._leave()
        round_number, name = self._sequence[self._at]
        measured: dict[str, Any] = dict(condition.measured) if condition is not None else {}
        self._blocks.append(
            Block(
                condition=name,
                round=round_number,
                step_ns=tuple(times["step"]),
                forward_ns=tuple(times.get(FORWARD, ())),
                backward_ns=tuple(times.get(BACKWARD, ())),
                optimizer_ns=tuple(times.get(OPTIMIZER, ())),
                backward_passes=tuple(times.get(PASSES, ())),
                **measured,
            )
        )

    # -- what is left behind --------------------------------------------------------------------------------------

    def _say_progress(self, round_number: int) -> None:
        who, _ = facts.this_process()
        if who is not None and who.rank == 0:
            path = progress_path(Path(self.plan.out))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{round_number}/{len(self.plan.rounds)}\n", encoding="utf-8")

    def _loaded(self) -> dict[str, str]:
        who, _ = facts.this_process()
        try:
            return own_sources(self._sources) if who is None or who.rank == 0 else {}
        except Exception:
            return self._sources  # a module that is none of Python's own making

    def _write(self, ended: str, error: str | None = None) -> None:
        who, notes = facts.this_process()
        model = self._model
        device = model.device if model is not None else torch.device("cpu")
        write_measurement(
            Path(self.plan.out),
            RankMeasurement(
                rank=who.rank if who is not None else 0,
                world_size=who.world_size if who is not None else 1,
                local_rank=(who.local_rank or 0) if who is not None else 0,
                host=socket.gethostname(),
                ended=ended,
                steps=self.steps,
                clock=self._clock.name,
                device=_device_name(device),
                torch=torch.__version__,
                error=error,
                wrapper=model.wrapper if model is not None else None,
                batch=self._phases.batch,
                buckets=tuple(_buckets(model)),
                cpus=as_ranges(usable_cpus()),
                blocks=tuple(self._blocks),
                latency_ns=tuple(self._latency),
                notes=tuple(notes),
                sources=self._loaded(),
            ),
        )


_runner: PlanRunner | None = None


def install(module: Any) -> None:
    """Run the plan of ``RANKSCOPE_EXPERIMENT`` in this process, if it trains.

    Args:
        module: ``torch.optim.optimizer``, just loaded.
    """
    global _runner
    plan = read_plan(os.environ[PLAN_VARIABLE])
    _runner = PlanRunner(plan)
    _runner.watch_optimizers(module)
    wrapper_arguments.install(plan.wrapper)
    # Exit handlers run before the process group's threads are gone; torch's own come after this one.
    atexit.register(_runner.at_exit)


def measure(step: Callable[[], object], plan: Plan | None = None) -> bool:
    """Call ``step`` until a plan is done; for a script that has a function for a training step.

    Args:
        step: makes one step of the training: forward, backward and the optimizer's.
        plan: what is done; by default that of ``rankscope measure``, which started this job.

    Returns:
        Whether a plan was done: without ``rankscope measure`` and without one given, ``step`` is not called at all.
    """
    global _runner
    if plan is not None:
        _runner = PlanRunner(plan)
        _runner.watch_optimizers(sys.modules["torch.optim.optimizer"])
        atexit.register(_runner.at_exit)
    if _runner is None:
        return False
    _runner.by_function = True
    while not _runner.over:
        step()
        _runner.step_ended()
    return True


def _device_name(device: torch.device) -> str:
    module: Any = getattr(torch, device.type, None)
    try:
        if device.type != "cpu":
            return str(module.get_device_name(device))
    except Exception:
        return device.type
    return facts.cpu_name() or "CPU"


def _buckets(model: Model | None) -> list[int]:
    try:
        return model.bucket_bytes() if model is not None else []
    except Exception:
        return []

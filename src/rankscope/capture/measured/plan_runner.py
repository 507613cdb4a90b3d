"""Run a plan in a job, step by step: warm-up, then blocks of steps, each under its condition, then a recorded window.

The ranks change the condition at the same step without communication, because all count the same steps and read the
same plan. Before each block they synchronize once, so that none begins it ahead of the others.

Unlike capture, the job is run in order to be measured: it ends when the plan is done, or when an error occurs.

In: the plan, and the ends of steps. Out: the file of this rank's step times.
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

from rankscope.capture import environment
from rankscope.capture.measured import conditions, wrapper_arguments
from rankscope.capture.measured.clocks import Clock, HostClock, clock_for, launch_latencies
from rankscope.capture.measured.model import Model
from rankscope.capture.measured.phases import BACKWARD, FORWARD, FORWARD_BACKWARD, OPTIMIZER, PASSES, Phases
from rankscope.capture.measured.sources import own_sources
from rankscope.capture.optimizers import PrimaryOptimizer, watch_steps
from rankscope.capture.process import this_process
from rankscope.rundir.atomic import write_atomic
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

_WARM_UP, _SETTLE, _COUNT, _TRACE, _DONE = range(5)
_TRACE_WARMUP = 2


class PlanRunner:
    """The plan of a job on this rank.

    Args:
        plan: what to measure.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = 0
        self.by_function = False
        """Whether a step is a call of the user's function instead of an optimizer step."""
        self._sequence = [(number, name) for number, names in enumerate(plan.rounds) for name in names]
        self._block_index = -1
        self._state, self._steps_left = _WARM_UP, plan.warmup
        self._clock: Clock = HostClock()
        self._phases = Phases(self._clock)
        self._model: Model | None = None
        self._conditions: dict[str, conditions.Condition] = {}
        self._condition: conditions.Condition | None = None
        self._parameters: list[torch.Tensor] = []
        self._primary = PrimaryOptimizer()
        self._blocks: list[Block] = []
        self._began = 0.0
        self._latency: list[int] = []
        self._sources: dict[str, str] = {}
        self._profiler: Any = None
        self._pid = os.getpid()

    # -- called by the job ----------------------------------------------------------------------------------------

    def watch_optimizers(self, module: Any) -> None:
        """Count the steps of all optimizers of this process.

        Args:
            module: ``torch.optim.optimizer``.
        """
        watch_steps(module, self._after_optimizer, self._before_optimizer)

    def step_ended(self) -> None:
        """Count a step of the training.

        Raises:
            SystemExit: the plan is done, or has failed.
        """
        self._phases.boundary()
        self.steps += 1
        if self._state == _DONE:
            return
        try:
            done = self._advance()
        except Exception as error:
            self._state = _DONE
            self._write(FAILED, f"{type(error).__name__}: {error}")
            raise SystemExit(f"rankscope: the measurement failed: {error}") from error
        if done:
            self._state = _DONE
            self._write(COMPLETE)
            if not self.by_function:
                # Leave the script's loop, whatever it is; its `finally` and `with` blocks are run.
                raise SystemExit(0)

    def at_exit(self) -> None:
        """The script ends: too early, if the plan is not done."""
        if self._state != _DONE and self.steps and self._pid == os.getpid():
            self._state = _DONE
            self._write(EARLY)

    @property
    def done(self) -> bool:
        """Whether the plan is done."""
        return self._state == _DONE

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
        """Count a step of the current state; returns whether the plan is done."""
        if self._state == _TRACE:
            self._profiler.step()
        self._steps_left -= 1
        if self._steps_left > 0:
            return False
        if self._state == _WARM_UP:
            self._inspect()
            return self._begin_next()
        if self._state == _SETTLE:
            self._count()
            return False
        if self._state == _COUNT:
            self._end_block()
            return self._begin_next()
        self._profiler.stop()
        self._leave()
        return True

    def _inspect(self) -> None:
        """Find the model and its device, which are known after the first steps."""
        self._sources = self._own_sources()
        self._model = Model(self._parameters)
        self._clock = clock_for(self._model.device)
        self._phases = Phases(self._clock)
        self._phases.watch_forward(self._model.called)
        self._phases.watch_backward()
        self._conditions = conditions.make(self.plan.conditions, self._model, self._parameters, Path(self.plan.out))
        if self.plan.latency:
            self._latency = launch_latencies(self._model.device)
        self._began = time.monotonic()

    def _begin_next(self) -> bool:
        """Begin the next block or the recorded window; returns whether the plan is done."""
        self._block_index += 1
        enough = self._synchronize() or self._block_index >= len(self._sequence)
        if not enough:
            round_number, name = self._sequence[self._block_index]
            self._write_progress(round_number)
            self._enter(name)
            self._state, self._steps_left = _SETTLE, self.plan.settle
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
        self._state, self._steps_left = _TRACE, _TRACE_WARMUP + self.plan.traced_steps
        return False

    def _synchronize(self) -> bool:
        """Wait for the device and all ranks; returns whether the time limit is over on any of them.

        True only between rounds, so that each round has all conditions.
        """
        block = self._block_index
        rounds = self._sequence[block - 1][0] + 1 if block > 0 else 0
        round_complete = block >= len(self._sequence) or self._sequence[block][0] == rounds
        out_of_time = self.plan.limit_s is not None and time.monotonic() - self._began > self.plan.limit_s
        enough = round_complete and out_of_time and rounds >= self.plan.least_rounds
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
        self._state, self._steps_left = _COUNT, self.plan.steps
        self._phases.on = True
        self._phases.boundary()

    def _end_block(self) -> None:
        self._phases.on = False
        condition = self._condition
        times = self._phases.take()
        self._leave()
        round_number, name = self._sequence[self._block_index]
        measured: dict[str, Any] = dict(condition.measured) if condition is not None else {}
        self._blocks.append(
            Block(
                condition=name,
                round=round_number,
                step_ns=tuple(times["step"]),
                forward_ns=tuple(times.get(FORWARD, ())),
                backward_ns=tuple(times.get(BACKWARD, ())),
                forward_backward_ns=tuple(times.get(FORWARD_BACKWARD, ())),
                optimizer_ns=tuple(times.get(OPTIMIZER, ())),
                backward_passes=tuple(times.get(PASSES, ())),
                **measured,
            )
        )

    # -- results --------------------------------------------------------------------------------------------------

    def _write_progress(self, round_number: int) -> None:
        process, _ = this_process()
        if process is not None and process.rank == 0:
            write_atomic(progress_path(Path(self.plan.out)), f"{round_number}/{len(self.plan.rounds)}\n")

    def _own_sources(self) -> dict[str, str]:
        process, _ = this_process()
        try:
            return own_sources(self._sources) if process is None or process.rank == 0 else {}
        except Exception:
            return self._sources  # an object in sys.modules that is not a module

    def _write(self, ended: str, error: str | None = None) -> None:
        process, notes = this_process()
        model = self._model
        device = model.device if model is not None else torch.device("cpu")
        write_measurement(
            Path(self.plan.out),
            RankMeasurement(
                rank=process.rank if process is not None else 0,
                world_size=process.world_size if process is not None else 1,
                local_rank=(process.local_rank or 0) if process is not None else 0,
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
                sources=self._own_sources(),
            ),
        )


_runner: PlanRunner | None = None


def install(module: Any) -> None:
    """Run the plan in ``RANKSCOPE_EXPERIMENT`` in this process, if it trains.

    Args:
        module: ``torch.optim.optimizer``, just loaded.
    """
    global _runner
    plan = read_plan(os.environ[PLAN_VARIABLE])
    _runner = PlanRunner(plan)
    _runner.watch_optimizers(module)
    wrapper_arguments.install(plan.wrapper)
    # Exit handlers run before the process group's threads end; torch's own come after this one.
    atexit.register(_runner.at_exit)


def measure(step: Callable[[], object], plan: Plan | None = None) -> bool:
    """Call ``step`` until the plan is done; for a script that has a function for a training step.

    Args:
        step: runs one step of the training: forward, backward and optimizer.
        plan: what to measure; by default the plan of ``rankscope measure``, which started this job.

    Returns:
        Whether a plan was run: without ``rankscope measure`` and without ``plan``, ``step`` is not called.
    """
    global _runner
    if plan is not None:
        _runner = PlanRunner(plan)
        _runner.watch_optimizers(sys.modules["torch.optim.optimizer"])
        atexit.register(_runner.at_exit)
    if _runner is None:
        return False
    _runner.by_function = True
    while not _runner.done:
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
    return environment.cpu_name() or "CPU"


def _buckets(model: Model | None) -> list[int]:
    try:
        return model.bucket_bytes() if model is not None else []
    except Exception:
        return []

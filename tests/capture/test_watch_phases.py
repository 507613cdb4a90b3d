"""The phases of a step, and that watching changes nothing of the job."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch

from rankscope.capture.watch import phases
from rankscope.capture.watch.phases import StepPhases, unwatch_phases, watch_phases


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by the sleeps of the test alone."""

    class Clock:
        now = 0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(phases, "_clock", clock)
    return clock


@pytest.fixture
def watched(clock):
    found = StepPhases(0)
    watch_phases(found)
    yield found
    unwatch_phases(found)


class Rows(torch.utils.data.Dataset):
    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.clock.now += 5
        return torch.ones(2)


class Slow(torch.autograd.Function):
    """Takes time in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock.now += 100
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += 1000
        return grad * 2, None


class SlowOptimizer(torch.optim.SGD):
    def __init__(self, parameters, clock):
        super().__init__(parameters, 0.1)
        self.clock = clock

    def step(self, closure=None):
        self.clock.now += 10_000
        return super().step(closure)


def test_each_phase_of_a_step(clock, watched):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = SlowOptimizer([weight], clock)
    loader = iter(torch.utils.data.DataLoader(Rows(clock), batch_size=2))
    batch = next(loader)
    clock.now += 3
    Slow.apply(weight * batch, clock).sum().backward()
    clock.now += 70_000  # clips the gradients, say
    optimizer.step()
    row = watched.end_step(4, clock.now, profiled=False)
    assert row[:9] == (4, 0, clock.now, 10, 103, 1000, 10_000, 10 + 103 + 1000, False)
    assert clock.now == 10 + 103 + 1000 + 70_000 + 10_000
    assert watched.end_step(5, clock.now + 1, profiled=True)[:9] == (
        5, clock.now, clock.now + 1, None, None, None, None, None, True,
    )  # fmt: skip


def test_gradient_accumulation_adds_up(clock, watched):
    weight = torch.nn.Parameter(torch.ones(2))
    for _ in range(3):
        Slow.apply(weight, clock).sum().backward()
    row = watched.end_step(0, clock.now, profiled=False)
    assert (row.forward, row.backward) == (300, 3000)


def test_other_threads_do_not_count(clock, watched):
    weight = torch.nn.Parameter(torch.ones(2))
    thread = threading.Thread(target=lambda: Slow.apply(weight, clock).sum().backward())
    thread.start()
    thread.join()
    assert watched.end_step(0, clock.now, profiled=False).backward is None


def test_an_optimizer_that_raised_is_forgotten(clock, watched):
    weight = torch.nn.Parameter(torch.ones(2))

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        Fails([weight], 0.1).step()
    watched.end_step(0, clock.now, profiled=False)
    SlowOptimizer([weight], clock).step()
    assert watched.end_step(1, clock.now, profiled=False).optimizer == 10_000


def test_an_exhausted_loader_and_a_failing_backward_raise_what_they_raised(clock, watched):
    with pytest.raises(StopIteration):
        next(iter(torch.utils.data.DataLoader([], batch_size=1)))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()


def test_torch_is_as_before_afterwards(clock):
    loader = torch.utils.data.dataloader._BaseDataLoaderIter
    before = loader.__next__, torch.autograd.backward
    found = StepPhases(0)
    watch_phases(found)
    assert loader.__next__ is not before[0]
    unwatch_phases(found)
    assert (loader.__next__, torch.autograd.backward) == before


def test_the_real_clock_moves():
    found = StepPhases(time.perf_counter_ns())
    watch_phases(found)
    try:
        torch.ones(3, requires_grad=True).sum().backward()
    finally:
        unwatch_phases(found)
    assert found.end_step(0, time.perf_counter_ns(), profiled=False).backward > 0


WATCHED_BEFORE_DYNAMO = """
import sys, torch
from rankscope.capture.watch.phases import StepPhases, watch_phases

watch_phases(StepPhases(0))
assert "torch._dynamo" not in sys.modules, "the watch loads Dynamo, which takes seconds"
weight = torch.ones(2, requires_grad=True)

@torch.compile(backend="eager")
def backward(x):
    (weight * x).sum().backward()

backward(torch.ones(2))
"""


def test_code_compiled_after_the_watch_began_is_as_without_it():
    """A job without an optimizer loads Dynamo later than the watch, whose wrapper Dynamo then traced, with warnings."""
    subprocess.run([sys.executable, "-W", "error", "-c", WATCHED_BEFORE_DYNAMO], check=True)


def test_compiled_code_is_as_without_the_watch(watched):
    """`--watch` ended a job whose step was in a graph that must be one, and torch warned of what it could not trace."""

    class Own(torch.optim.Optimizer):
        def __init__(self, model):
            super().__init__(model.parameters(), {})

        @torch.no_grad()
        def step(self):
            for weight in self.param_groups[0]["params"]:
                weight.sub_(weight.grad)

    model = torch.nn.Linear(2, 2)
    optimizer = Own(model)
    torch.compile(lambda: None, backend="eager", fullgraph=True)()
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)

    @torch.compile(backend="eager")
    def backward(x):
        model(x).sum().backward()

    for number in range(3):
        backward(torch.ones(1, 2))
        step()
        row = watched.end_step(number, 0, profiled=False)
        assert row.backward is not None  # it is called after a break in the graph
        assert row.optimizer is None

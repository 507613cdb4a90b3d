"""Optimizer steps, watched from outside."""

from __future__ import annotations

import os
import threading
import types

import pytest
import torch

from rankscope.capture.notices import CaptureWarning
from rankscope.capture.optimizers import OTHERS_UNTIL_CHANGE, PrimaryOptimizer, watch_steps


class Outer(torch.optim.Optimizer):
    """Calls another one in its own step, as ZeRO does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.fixture
def module():
    """torch.optim.optimizer's kind, so that nothing is left behind of it."""

    class Optimizer(torch.optim.Optimizer):
        pass

    return types.SimpleNamespace(Optimizer=Optimizer)


def stepping(module, optimizer, function):
    """A step as torch wraps it for this optimizer's kind."""
    wrapped = module.Optimizer.profile_hook_step(function)
    return lambda: wrapped(optimizer)


def test_only_the_outermost_step_counts(module):
    said = []
    watch_steps(
        module, lambda o: said.append(("after", o)), lambda o: said.append(("before", o)), lambda: said.append("made")
    )
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    outer = Outer(inner)
    inside = stepping(module, inner, lambda _self: said.append("step"))
    outside = stepping(module, outer, lambda _self: inside())
    assert said == ["made", "made"]
    said.clear()
    outside()
    assert said == [("before", outer), "step", ("after", outer)]


def test_a_step_that_raised_does_not_count_and_the_next_does(module):
    said = []
    watch_steps(module, said.append)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    def failing(_self):
        raise RuntimeError("no step")

    with pytest.raises(RuntimeError, match="no step"):
        stepping(module, optimizer, failing)()
    assert said == []
    stepping(module, optimizer, lambda _self: None)()
    assert said == [optimizer]


def test_a_process_forked_inside_a_step_counts_its_own(module, monkeypatch):
    in_child = []
    monkeypatch.setattr(
        os, "register_at_fork", lambda *, after_in_child: in_child.append(after_in_child), raising=False
    )
    said = []
    watch_steps(module, said.append)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    own = stepping(module, optimizer, lambda _self: None)

    def forking(_self):
        own()
        assert said == []  # within a step of the same process it is none
        for each in in_child:
            each()
        own()
        raise SystemExit  # the child does not come back

    with pytest.raises(SystemExit):
        stepping(module, optimizer, forking)()
    assert said == [optimizer]


def test_steps_of_other_threads_are_none_of_the_loop(module):
    """A rank with a pool of threads that train, too, crashed: its profiler was driven by all of them."""
    said = []
    watch_steps(module, lambda _optimizer: said.append(threading.current_thread().name))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    plain = stepping(module, optimizer, lambda _self: None)

    def in_a_thread(name, function):
        thread = threading.Thread(target=function, name=name)
        thread.start()
        return thread

    def within_a_step(_self):
        in_a_thread("helper", lambda: [plain() for _ in range(40)]).join()

    in_a_thread("loop", stepping(module, optimizer, within_a_step)).join()
    in_a_thread("the next loop", plain).join()  # the first has ended
    assert said == ["loop", "the next loop"]


def test_a_helper_that_steps_first_is_reported_when_the_main_thread_steps(module):
    watch_steps(module, lambda _optimizer: None)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    plain, stepped, over = stepping(module, optimizer, lambda _self: None), threading.Event(), threading.Event()

    def helper():
        plain()
        stepped.set()
        over.wait()

    thread = threading.Thread(target=helper, name="helper")
    thread.start()
    stepped.wait()
    with pytest.warns(CaptureWarning, match="the steps of thread helper are counted") as warned:
        plain()
        plain()
    over.set()
    thread.join()
    assert len(warned) == 1


def test_the_first_step_of_a_later_phase_of_the_training_is_known():
    first, other = (torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(2))
    primary = PrimaryOptimizer()
    steps = [first] * 3 + [other] * (OTHERS_UNTIL_CHANGE + 2)
    counted = [(number, primary.changed) for number, each in enumerate(steps) if primary.counts(each)]
    assert counted[:3] == [(0, False), (1, False), (2, False)]
    assert counted[3:] == [(number, number == 2 + OTHERS_UNTIL_CHANGE) for number, _ in counted[3:]]
    assert len(counted) == 3 + 3
    for each in (other, first, first, first, other):  # several optimizers in each step
        primary.counts(each)
    assert not primary.changed


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_step_is_counted(module, fullgraph):
    said = []

    def after(optimizer):
        said.append((os.getpid(), optimizer))  # a call that torch.compile cannot trace

    watch_steps(module, after)
    value = torch.ones(2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(value)], lr=0.1)
    step = torch.compile(stepping(module, optimizer, lambda _self: value.add_(1)), backend="eager", fullgraph=fullgraph)
    step()
    step()
    assert value.tolist() == [3, 3]
    assert said == 2 * [(os.getpid(), optimizer)]


def test_a_step_in_a_graph_that_must_be_one_is_counted_around_the_graph(module):
    """Its first call and a later one, with other shapes; not where the graph has no step."""
    said = []
    watch_steps(module, lambda _optimizer: said.append("after"), lambda _optimizer: said.append("before"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    step = stepping(module, optimizer, lambda _self: None)

    @torch.compile(backend="eager", fullgraph=True)
    def train(x, steps):
        if steps:
            step()
        return x * 2

    train(torch.ones(2), True)
    assert said == ["before", "after"]
    train(torch.ones(3), True)
    assert said == 2 * ["before", "after"]
    assert train(torch.ones(3), False).tolist() == [2, 2, 2]
    assert len(said) == 4

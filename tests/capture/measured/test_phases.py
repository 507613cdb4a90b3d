"""The phases of a step, timed with a fake clock."""

from __future__ import annotations

import torch

from rankscope.capture.measured.phases import BACKWARD, FORWARD, FORWARD_BACKWARD, OPTIMIZER, PASSES, Phases


class Counting:
    """Says the times that it was given, one after the other."""

    name = "counting"

    def __init__(self, *times: int) -> None:
        self._times = iter(times)

    def now(self) -> int:
        return next(self._times)

    def read(self, marks):
        return list(marks)

    def settle(self) -> None:
        pass


def passed(phases: Phases, *names: str) -> None:
    """``+NAME`` begins, ``-NAME`` ends, ``|`` is where one step ends and the next begins."""
    for name in names:
        if name == "|":
            phases.boundary()
        else:
            (phases.begin if name[0] == "+" else phases.end)(name[1:])


def test_parts_that_follow_one_another():
    phases = Phases(Counting(0, 1, 4, 5, 11, 12, 14, 15))
    phases.on = True
    passed(
        phases, "|", f"+{FORWARD}", f"-{FORWARD}", f"+{BACKWARD}", f"-{BACKWARD}", f"+{OPTIMIZER}", f"-{OPTIMIZER}", "|"
    )
    assert phases.take() == {
        "step": [15],
        FORWARD: [3],
        BACKWARD: [6],
        FORWARD_BACKWARD: [10],  # from 1 to 11
        OPTIMIZER: [2],
        PASSES: [1],
    }


def test_forward_and_backward_leave_out_what_is_between_two_passes():
    # Two micro-batches: 1 to 11 and 20 to 26; the data of the second are loaded between them.
    phases = Phases(Counting(0, 1, 4, 5, 11, 20, 21, 24, 26, 30))
    phases.on = True
    both = (f"+{FORWARD}", f"-{FORWARD}", f"+{BACKWARD}", f"-{BACKWARD}")
    passed(phases, "|", *both, *both, "|")
    assert phases.take()[FORWARD_BACKWARD] == [16]


def test_a_second_backward_has_no_loss_of_its_own():
    # Forward 1 to 4, backward 5 to 11 and, after other work, 20 to 22: 3 + 1 + 6 + 2.
    phases = Phases(Counting(0, 1, 4, 5, 11, 20, 22, 30))
    phases.on = True
    backward = (f"+{BACKWARD}", f"-{BACKWARD}")
    passed(phases, "|", f"+{FORWARD}", f"-{FORWARD}", *backward, *backward, "|")
    assert phases.take()[FORWARD_BACKWARD] == [12]


def test_a_forward_of_the_step_before_is_not_of_this_one():
    phases = Phases(Counting(0, 1, 4, 5, 8, 9, 10))
    phases.on = True
    passed(phases, "|", f"+{FORWARD}", f"-{FORWARD}", "|", f"+{BACKWARD}", f"-{BACKWARD}", "|")
    assert FORWARD_BACKWARD not in phases.take()


def test_a_closure_within_the_optimizers_step_is_not_counted_twice():
    # LBFGS: the optimizer's step from 1 to 30 calls forward (3) and backward (6) twice: 29 - 18 are its own.
    phases = Phases(Counting(0, 1, 2, 5, 6, 12, 15, 18, 19, 25, 30, 31))
    phases.on = True
    closure = (f"+{FORWARD}", f"-{FORWARD}", f"+{BACKWARD}", f"-{BACKWARD}")
    passed(phases, "|", f"+{OPTIMIZER}", *closure, *closure, f"-{OPTIMIZER}", "|")
    assert phases.take() == {
        "step": [31],
        FORWARD: [6],
        BACKWARD: [12],
        OPTIMIZER: [11],
        FORWARD_BACKWARD: [20],
        PASSES: [2],
    }


def test_compiled_code_is_as_without_the_phases(monkeypatch):
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    phases = Phases(Counting(*range(100)))
    phases.on = True
    model = torch.nn.Linear(2, 2)
    torch.optim.SGD(model.parameters())  # loads torch's compiler
    phases.watch_forward([model])
    phases.watch_backward()
    forward = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    backward = torch.compile(lambda x: model(x).sum().backward(), backend="eager")
    phases.boundary()
    for _ in range(2):
        forward(torch.ones(1, 2)).backward()
        phases.boundary()
    backward(torch.ones(1, 2))
    phases.boundary()
    assert phases.take()[PASSES] == [1, 1, 1]

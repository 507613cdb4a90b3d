"""The phases of a step on the device, with events of a device whose clock the test sets."""

from __future__ import annotations

import ctypes

import pytest
import torch

from rankscope.capture import graph_capture
from rankscope.capture.watch import device_marks
from rankscope.capture.watch.device_marks import DeviceMarks, DevicePhases
from rankscope.capture.watch.phases import StepPhases, unwatch_phases, watch_phases


class Device:
    """Its events have the time at which they were recorded; `done` is how far it is."""

    def __init__(self):
        self.now, self.done, self.capturing = 0, 10**9, False

    def event(self, *, enable_timing):
        assert enable_timing
        device = self

        class Event:
            def record(self):
                self.at = device.now

            def query(self):
                return self.at <= device.done

            def elapsed_time(self, other):
                return float(other.at - self.at)

        return Event()


@pytest.fixture
def device(monkeypatch):
    found = Device()
    monkeypatch.setattr(device_marks, "device_in_use", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    return found


MS = 10**6


def test_phases_are_between_the_marks(device):
    marks = DeviceMarks()
    times = {"": 5, "forward": 25, "backward": 65, "waiting": 66, "other": 70, "optimizer": 80}
    for ended, now in (*times.items(), ("other", 81)):
        device.now = now
        marks.mark(ended)
    assert marks.is_over()
    assert marks.phases() == DevicePhases(76 * MS, 20 * MS, 40 * MS, 1 * MS, 10 * MS)
    device.done = 80
    assert not marks.is_over()
    assert marks.phases() is None


def test_a_captured_stream_or_another_order_is_unknown(device):
    captured = DeviceMarks()
    captured.mark("")
    device.capturing = True
    captured.mark("forward")
    device.capturing = False
    captured.mark("other")
    assert captured.phases() is None
    assert captured.is_over()
    marks = DeviceMarks()
    device.now = 7
    marks.mark("")
    device.now = 6  # of another stream
    marks.mark("other")
    assert marks.phases() is None


def test_without_a_device_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(device_marks, "device_in_use", lambda: None)
    marks = DeviceMarks()
    marks.mark("")
    marks.mark("other")
    assert marks.is_over()
    assert marks.phases() is None


class Waits(torch.autograd.Function):
    """As DDP does: its first gradient has a callback run at the end of the pass, which waits."""

    @staticmethod
    def forward(ctx, value, device):
        ctx.device = device
        return value * 1.0

    @staticmethod
    def backward(ctx, gradient):
        device = ctx.device

        def wait():
            device.now += 30

        torch.autograd.Variable._execution_engine.queue_callback(wait)
        device.now += 4
        return gradient, None


@pytest.mark.parametrize("passes", [1, 2])
def test_the_wait_at_the_end_of_the_backward_pass_is_apart(device, passes):
    phases = StepPhases(0)
    watch_phases(phases)
    try:
        weight = torch.ones(2, requires_grad=True)
        device.now += 10
        loss = Waits.apply(weight, device).sum()
        for again in reversed(range(passes)):
            loss.backward(retain_graph=again > 0)
        row = phases.end_step(0, 1, profiled=False)
    finally:
        unwatch_phases(phases)
    assert row.device.phases() == DevicePhases(
        (10 + 34 * passes) * MS, 10 * MS, 4 * passes * MS, 30 * passes * MS, None
    )
    assert weight.grad.tolist() == [passes, passes]


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_what_is_given_to_backward_reaches_torch(device, kind):
    phases = StepPhases(0)
    watch_phases(phases)
    try:
        weights = [torch.ones(1, requires_grad=True) for _ in range(2)]
        torch.autograd.backward(kind([weight * 3 for weight in weights]))
        torch.autograd.backward(tensors=kind([weight * 3 for weight in weights]))
    finally:
        unwatch_phases(phases)
    assert [weight.grad.item() for weight in weights] == [6, 6]


def test_an_edge_of_the_graph_and_a_loss_that_is_saved(device, tmp_path):
    phases = StepPhases(0)
    watch_phases(phases)
    try:
        weight = torch.ones(1, requires_grad=True)
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(weight * 3), torch.tensor([1.0]))
        loss = (weight * 2).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        assert not loss._backward_hooks
        torch.save({"loss": loss}, tmp_path / "loss.pt")  # which warns of hooks
    finally:
        unwatch_phases(phases)
    assert weight.grad.item() == 9


class Nested(torch.autograd.Function):
    """As a reentrant checkpoint: a backward pass in the backward pass."""

    @staticmethod
    def forward(ctx, value):
        return value * 2.0

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            (torch.ones(1, requires_grad=True) * 2).sum().backward()
        return gradient * 2


def test_a_backward_pass_within_another_counts_once(device):
    phases = StepPhases(0)
    watch_phases(phases)
    try:
        weight = torch.ones(1, requires_grad=True)
        device.now = 10
        Nested.apply(weight).sum().backward()
        row = phases.end_step(0, 1, profiled=False)
    finally:
        unwatch_phases(phases)
    assert [ended for ended, _ in row.device._marks] == ["", "forward", "backward", "waiting", "other"]
    assert weight.grad.item() == 2


def test_a_backward_pass_of_nothing_fails_as_before(device):
    phases = StepPhases(0)
    watch_phases(phases)
    try:
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
        with pytest.raises(TypeError):
            torch.autograd.backward()
    finally:
        unwatch_phases(phases)


@pytest.fixture
def library(monkeypatch):
    """A device's library with a capture mode of this thread."""
    found = {"mode": 0, "fails": False, "asked": []}

    class Library:
        @staticmethod
        def cuThreadExchangeStreamCaptureMode(pointer):
            if found["fails"]:
                return 1
            mode = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))
            found["mode"], mode[0] = mode[0], found["mode"]
            return 0

    def load(name, mode=0):
        found["asked"].append(name)
        return Library()

    graph_capture._exchange_mode.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    yield found
    graph_capture._exchange_mode.cache_clear()


def test_queries_are_made_in_a_mode_of_the_thread(library):
    with graph_capture.queries_beside_capture() as allowed:
        assert allowed
        assert library["mode"] == 1
    assert library["mode"] == 0
    with pytest.raises(ValueError, match="theirs"), graph_capture.queries_beside_capture():
        raise ValueError("theirs")
    assert library["mode"] == 0


def test_without_such_a_mode_queries_are_not_allowed(library, monkeypatch):
    library["fails"] = True
    with graph_capture.queries_beside_capture() as allowed:
        assert not allowed

    def missing(name, mode=0):
        raise OSError(name)

    graph_capture._exchange_mode.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with graph_capture.queries_beside_capture() as allowed:
        assert not allowed

"""The times of a thread, and where they go in the step that they are of."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest
import torch

from rankscope.capture.watch import phases as watched_phases
from rankscope.capture.watch.phases import StepPhases, unwatch_phases, watch_phases
from rankscope.capture.watch.thread_clock import ThreadClock, ThreadTimes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's account of a thread is Linux's")
def test_work_is_counted_and_another_threads_is_not():
    clock = ThreadClock()
    before = clock.read()
    assert before is not None
    other = threading.Thread(target=lambda: sum(range(2_000_000)))
    other.start()
    other.join()
    alone = clock.read()
    sum(range(2_000_000))
    worked = clock.read()
    assert worked.running - alone.running > 2 * (alone.running - before.running)
    assert worked.ready >= alone.ready >= before.ready
    clock.close()
    assert clock.read() is None


def test_nothing_is_known_without_the_kernels_account(monkeypatch):
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError("no such file")))
    assert ThreadClock().read() is None


def test_a_job_that_closes_all_files_loses_the_readings_and_nothing_else(monkeypatch):
    clock = ThreadClock()
    monkeypatch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(OSError("bad file descriptor")))
    assert clock.read() is None
    monkeypatch.undo()
    assert clock.read() is None  # what has this number now is not ours


class Times:
    """A thread that has run 1 ns and waited 10 ns more at each reading."""

    def __init__(self):
        self.readings = 0

    def read(self):
        self.readings += 1
        return ThreadTimes(self.readings, 10 * self.readings)

    def close(self):
        pass


def phases_of(monkeypatch, clock):
    monkeypatch.setattr(watched_phases, "ThreadClock", lambda: clock)
    phases = StepPhases(0)
    watch_phases(phases)
    return phases


def test_each_reading_is_of_the_stretch_before_it(monkeypatch):
    phases = phases_of(monkeypatch, Times())
    try:
        weight = torch.nn.Parameter(torch.ones(2))
        (2 * weight).sum().backward()
        (3 * weight).sum().backward()  # gradients are accumulated
        row = phases.end_step(1, 10, profiled=False)
        assert row.threads == (ThreadTimes(2, 20), ThreadTimes(2, 20), ThreadTimes(1, 10))
        assert phases.end_step(2, 20, profiled=False).threads == (ThreadTimes(1, 10),)
    finally:
        unwatch_phases(phases)


def test_without_readings_a_step_has_none(monkeypatch):
    clock = Times()
    clock.read = lambda: None
    phases = phases_of(monkeypatch, clock)
    try:
        assert phases.end_step(1, 10, profiled=False).threads == ()
    finally:
        unwatch_phases(phases)


def test_collections_of_the_loops_thread_count(monkeypatch):
    now = [0]
    monkeypatch.setattr(watched_phases, "_clock", lambda: now.__setitem__(0, now[0] + 5) or now[0])
    phases = phases_of(monkeypatch, Times())
    try:
        gc.disable()
        gc.collect()
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
        assert phases.end_step(1, 10, profiled=False).collecting == 5
        assert phases.end_step(2, 20, profiled=False).collecting == 0
    finally:
        gc.enable()
        unwatch_phases(phases)
    assert watched_phases._on_collection not in gc.callbacks

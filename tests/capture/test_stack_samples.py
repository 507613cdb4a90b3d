"""Samples of the loop's stack: the job's own frames, bounded, from the thread that is sampled."""

from __future__ import annotations

import sys
import threading

import pytest

from rankscope.capture.watch import stack_samples
from rankscope.capture.watch.log_lines import LogLines
from rankscope.capture.watch.stack_samples import Sample, StackSampler


def in_a_function(entered, leave):
    entered.set()
    leave.wait()


@pytest.fixture
def sampled():
    """A sampler of a thread that is in `in_a_function`."""
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=in_a_function, args=(entered, leave))
    thread.start()
    entered.wait()
    yield thread
    leave.set()
    thread.join()


def test_the_jobs_frames_of_that_thread_the_innermost_first(sampled):
    sampler = StackSampler(sampled.ident, lambda: 3)
    for _ in range(2):
        sampler._add(3, sampler._place(sys._current_frames()[sampled.ident]))
    ((number, place),), samples = sampler.take()
    # What waits, in `threading`, and what started the thread are Python's own.
    ((file, line, function),) = place
    assert (file, function) == (__file__, "in_a_function")
    assert line == in_a_function.__code__.co_firstlineno + 2
    assert samples == [Sample(3, number), Sample(3, number)]
    assert sampler.take() == ([], [])


def test_it_samples_while_the_loop_is_to_be_sampled(sampled, monkeypatch):
    monkeypatch.setattr(stack_samples, "FIRST_INTERVAL_S", 1e-4)
    asked, enough = [], threading.Event()

    def step():
        asked.append(len(asked))
        if len(asked) == 6:
            enough.set()
        return None if len(asked) % 2 else len(asked)  # every other time a profiler records

    sampler = StackSampler(sampled.ident, step)
    sampler.start()
    enough.wait()
    sampler.stop()
    sampler._thread.join()
    _, samples = sampler.take()
    assert [sample.step for sample in samples[:2]] == [2, 4]


def test_a_sampler_ends_with_its_thread(monkeypatch):
    monkeypatch.setattr(stack_samples, "FIRST_INTERVAL_S", 1e-4)
    sampler = StackSampler(-1, lambda: 1)
    sampler.start()
    sampler._thread.join()
    assert sampler.take() == ([], [])


def test_places_and_samples_are_bounded(monkeypatch):
    monkeypatch.setattr(stack_samples, "MAX_PLACES", 2)
    sampler = StackSampler(0, lambda: 1)
    for number in range(5):
        sampler._add(1, (("job.py", number, "f"),))
    places, samples = sampler.take()
    assert len(places) == len(samples) == 2
    for _ in range(10_000):
        sampler._add(1, (("job.py", 0, "f"),))
    assert len(sampler.take()[1]) == stack_samples._WAITING_SAMPLES


def test_the_lines_of_the_log():
    lines = LogLines()
    line = lines.samples([(0, (("job.py", 7, "tokenize"),))], [Sample(4, 0), Sample(5, 0)])
    assert line == '{"samples":[[4,0],[5,0]]}'
    assert lines.definitions == ['{"place":0,"frames":[["job.py",7,"tokenize"]]}']
    assert lines.samples([], []) is None

"""What the thread of a late rank did for longer than its peers', from logs by hand."""

from __future__ import annotations

import pytest

from rankscope.answers.watch.log import KEPT_SAMPLES, RankLog, StepLine
from rankscope.answers.watch.thread_excess import thread_excess
from rankscope.primitives.stragglers.thread_excess import CodePlace
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header

MS = 1_000_000
STEPS = range(1, 21)
JOB = "/home/me/job.py"


def log(rank, *, running=(10, 20, 5), ready=(), gc_ms=0, samples=(), places=None, step_ms=100):
    """Twenty steps alike; times in ms."""
    found = RankLog(Header(SCHEMA_VERSION, rank))
    for step in range(21):
        found.steps.append(
            StepLine(
                step,
                step * step_ms * MS,
                step_ms * MS,
                running_us=tuple(1000 * each for each in running),
                ready_us=tuple(1000 * each for each in ready),
                gc_ns=gc_ms * MS,
            )
        )
    found.places.update(places or {})
    found.samples.extend(samples)
    return found


def excess(late, *others, ns=30 * MS):
    logs = {each.header.rank: each for each in (late, *others)}
    return thread_excess(logs, late.header.rank, list(STEPS), len(STEPS), ns)


@pytest.mark.parametrize(
    ("running", "ready", "found"),
    [
        ((10, 20, 5), (), (0, 0, 30)),  # it sleeps
        ((40, 20, 5), (), (30, 0, 0)),
        ((10, 20, 30), (), (25, 0, 5)),  # after its last collective: a part of the next step
        ((25, 20, 5), (0, 15, 0), (15, 15, 0)),
        ((90, 20, 5), (0, 0, 0), (30, 0, 0)),  # at most what it is late by
    ],
)
def test_what_a_late_thread_does(running, ready, found):
    thread = excess(log(1, running=running, ready=ready), log(0), log(2))
    assert (thread.running_ns, thread.ready_ns, thread.asleep_ns) == tuple(ms * MS for ms in found)


def test_on_a_busy_machine_a_thread_that_runs_more_also_waits_more():
    peers = [log(rank, running=(10, 20, 5), ready=(20, 40, 10)) for rank in (0, 2)]
    as_busy = excess(log(1, running=(20, 20, 5), ready=(40, 40, 10)), *peers)
    assert (as_busy.running_ns, as_busy.ready_ns, as_busy.asleep_ns) == (30 * MS, 0, 0)
    # Its core is busier than theirs: 45 ms would make it wait for 90 ms.
    busier = excess(log(1, running=(20, 20, 5), ready=(70, 40, 10)), *peers, ns=60 * MS)
    assert (busier.running_ns, busier.ready_ns, busier.asleep_ns) == (30 * MS, 30 * MS, 0)


def test_without_readings_on_a_rank_it_is_not_known():
    thread = excess(log(1, running=(40, 20, 5), gc_ms=12), log(0, running=()))
    assert (thread.running_ns, thread.ready_ns, thread.asleep_ns) == (None, None, None)
    assert thread.collecting_ns == 12 * MS


def test_only_the_late_steps_count():
    late = log(1, running=(40, 20, 5))
    logs = {0: log(0), 1: late}
    assert thread_excess(logs, 1, [5, 10], 20, 3 * MS).running_ns == 3 * MS  # 30 ms in two of twenty steps
    assert thread_excess(logs, 1, [30], 20, 3 * MS).running_ns is None  # no such step


PLACES = {
    0: ((JOB, 25, "<module>"),),
    1: ((JOB, 30, "<module>"),),
    2: ((JOB, 8, "tokenize"), (JOB, 25, "<module>")),
    3: ((JOB, 9, "<listcomp>"), (JOB, 9, "tokenize"), (JOB, 25, "<module>")),
}


def test_the_line_at_which_it_is():
    # Its peers are as often at line 30, where they wait for it.
    late = log(1, samples=[(step, step % 2) for step in STEPS], places=PLACES)
    other = log(0, samples=[(step, 1) for step in STEPS], places=PLACES)
    thread = excess(late, other, ns=50 * MS)
    assert thread.place == CodePlace(JOB, 25, "<module>")
    assert thread.place_ns == 50 * MS
    assert str(thread.place) == "job.py:25"


def test_the_innermost_function_not_its_comprehension():
    late = log(1, samples=[(step, (1, 2, 3)[step % 3]) for step in STEPS], places=PLACES)
    other = log(0, samples=[(step, 1) for step in STEPS], places=PLACES)
    place = excess(late, other, ns=70 * MS).place
    assert (place.function, place.file) == ("tokenize", JOB)
    assert str(place) in ("tokenize (job.py:8)", "tokenize (job.py:9)")


def test_few_samples_name_nothing():
    late = log(1, samples=[(step, 0) for step in range(1, 5)], places=PLACES)
    assert excess(late, log(0, places=PLACES)).place is None


def test_damaged_lines_cost_nothing_else():
    found = RankLog(Header(SCHEMA_VERSION, 0))
    for line in (
        b'{"place":0,"frames":[["a.py",1,"f"],["b.py"],[1,2,3],["c.py",-1,"g"]]}',
        b'{"place":1,"frames":"x"}',
        b'{"samples":[[1,0],[2],"x",[3,"y"],[4,1]]}',
        b'{"samples":7}',
        b'{"step":5,"start_ns":1,"ns":2,"running_us":["x",3],"gc_ns":-1}',
    ):
        found.add(line)
    assert found.places == {0: (("a.py", 1, "f"),), 1: ()}
    assert list(found.samples) == [(1, 0), (4, 1)]
    assert found.steps[0].gc_ns == 0
    many = ",".join(["[1,0]"] * (KEPT_SAMPLES + 5))
    found.add(f'{{"samples":[{many}]}}'.encode())
    assert len(found.samples) == KEPT_SAMPLES

"""Which steps are recorded."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.schedule import Window, windows

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
small = st.integers(0, 4)


@calm
@given(small, st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), small)
def test_cycles_are_those_of_torchs_schedule(wait, warmup, active, repeat, skip_first):
    config = CaptureConfig(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    of_torch = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    ours = dict.fromkeys(range(60), "NONE")
    for window in islice(windows(config, 0), 60):
        ours |= dict.fromkeys(range(window.warmup, window.first), "WARMUP")
        ours |= dict.fromkeys(range(window.first, window.last), "RECORD")
        ours[window.last] = "RECORD_AND_SAVE"
    assert [ours[step] for step in range(60)] == [of_torch(step).name for step in range(60)]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (0, Window(7, 8, 9)),
        (7, Window(7, 8, 9)),  # its warm-up begins right now
        (8, Window(8, 9, 9)),  # one step for the warm-up, the other one is recorded
        (9, Window(17, 18, 19)),  # no step would be left
        (10, Window(17, 18, 19)),
        (1234, Window(1237, 1238, 1239)),
    ],
)
def test_of_a_period_that_has_begun_the_rest_is_recorded_after_a_warmup(start, first):
    config = CaptureConfig(period_steps=10, warmup=1, active=2, repeat=0)
    assert next(windows(config, start)) == first


def test_a_warmup_that_has_begun_is_shorter_and_no_warmup_stays_none():
    config = CaptureConfig(period_steps=10, warmup=3, active=2, repeat=0)
    assert [next(windows(config, start)) for start in (6, 7, 8)] == [Window(6, 8, 9), Window(7, 8, 9), Window(8, 9, 9)]
    config = CaptureConfig(period_steps=10, warmup=0, active=2, repeat=0)
    assert [next(windows(config, start)) for start in (8, 9, 10)] == [
        Window(8, 8, 9),
        Window(9, 9, 9),
        Window(18, 18, 19),
    ]


def test_d9ds_own_profiler_records_the_same_steps():
    """Its schedule is torch's, and its first step after `open` is never recorded."""
    config = CaptureConfig(period_steps=10, warmup=2, active=3, repeat=0)
    of_torch = torch.profiler.schedule(wait=5, warmup=2, active=3)
    for start in range(20):
        recorded = [step for step in range(start + 1, 40) if of_torch(step).name.startswith("RECORD")]
        ours = [step for each in islice(windows(config, start), 4) for step in range(each.first, each.last + 1)]
        assert [step for step in ours if step < 40] == recorded


@calm
@given(st.integers(0, 1000), st.integers(0, 5), st.integers(1, 5), st.integers(0, 20), st.integers(0, 30))
def test_periods_are_at_fixed_steps(start, warmup, active, rest, skip_first):
    period = warmup + active + rest
    config = CaptureConfig(period_steps=period, warmup=warmup, active=active, repeat=0, skip_first=skip_first)
    found = list(islice(windows(config, start), 3))
    for window in found:
        assert (window.last + 1) % period == 0
    for window in found[1:]:
        assert (window.first - window.warmup, window.last - window.first) == (warmup, active - 1)
    first, earliest = found[0], start + skip_first
    assert earliest <= first.warmup <= first.first <= first.last
    assert first.last - period < earliest + min(warmup, 1)
    assert first.first == max(first.last - active + 1, earliest + min(warmup, 1))
    assert [b.last - a.last for a, b in pairwise(found)] == [period, period]


def test_a_resumed_cycle_counts_from_where_it_begins():
    config = CaptureConfig(wait=2, warmup=1, active=3, repeat=2)
    assert list(windows(config, 1000)) == [Window(1002, 1003, 1005), Window(1008, 1009, 1011)]

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
        (8, Window(17, 18, 19)),  # in the middle of a warm-up or a recording: not this period
        (9, Window(17, 18, 19)),
        (10, Window(17, 18, 19)),
        (1234, Window(1237, 1238, 1239)),
    ],
)
def test_a_period_is_not_recorded_without_its_warmup(start, first):
    config = CaptureConfig(period_steps=10, warmup=1, active=2, repeat=0)
    assert next(windows(config, start)) == first


@calm
@given(st.integers(0, 1000), st.integers(0, 5), st.integers(1, 5), st.integers(0, 20), st.integers(0, 30))
def test_periods_are_at_fixed_steps(start, warmup, active, rest, skip_first):
    period = warmup + active + rest
    config = CaptureConfig(period_steps=period, warmup=warmup, active=active, repeat=0, skip_first=skip_first)
    found = list(islice(windows(config, start), 3))
    for window in found:
        assert (window.last + 1) % period == 0
        assert (window.first - window.warmup, window.last - window.first) == (warmup, active - 1)
    assert start + skip_first <= found[0].warmup < start + skip_first + period
    assert [b.last - a.last for a, b in pairwise(found)] == [period, period]


def test_a_resumed_cycle_counts_from_where_it_begins():
    config = CaptureConfig(wait=2, warmup=1, active=3, repeat=2)
    assert list(windows(config, 1000)) == [Window(1002, 1003, 1005), Window(1008, 1009, 1011)]

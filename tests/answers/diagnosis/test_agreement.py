"""All outputs show one state of the ranks, whatever the run: odd ones drawn at random, simulated ones, known ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import kineto
from tests.answers.diagnosis.agreement import agree
from tests.claims.test_claims import SETS, SLOW, files_of

import rankscope
from rankscope.experiments.simulate import Fault, Job, simulate


def rank(works: Sequence[float], *, marked: bool, device: bool, collective: bool, arrivals: Sequence[float]) -> list:
    """The events of a rank: steps in which it works, and then waits in a collective for the last to arrive.

    Args:
        works: by step, µs before its collective begins.
        arrivals: by step, when the last rank's collective begins, µs from the step's start.
    """
    events: list[kineto.Event] = []
    at = 0.0
    for number, (work, last) in enumerate(zip(works, arrivals, strict=True)):
        end = at + last + 100
        if marked:
            events.append(kineto.step(number, at, end - at))
        key = 10 * number + 1
        if device:
            events += [
                kineto.launch(at + 1, 2, correlation=key),
                kineto.kernel("gemm", at + 4, work - 4, correlation=key),
            ]
            if collective:
                events.append(kineto.launch(at + 3.5, 0.25, correlation=key + 1))
                events.append(kineto.collective(at + work, end - 1 - at - work, stream=20, correlation=key + 1))
        else:
            events.append(kineto.op("aten::mm", at + 1, work - 2))
            if collective:
                events.append(kineto.annotation("gloo:all_reduce", at + work, end - 1 - at - work, tid=9))
        at = end
    return events


@st.composite
def odd_runs(draw: st.DrawFn) -> tuple[dict[int, list[kineto.Event]], int | None, float]:
    """Events by rank, the rank whose file is cut, and the share of it that is left."""
    ranks, steps = draw(st.integers(1, 3)), draw(st.integers(0, 6))
    marked, device, collective = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    work = st.integers(50, 60) if draw(st.booleans()) else st.integers(50, 900)
    works = [[float(draw(work)) for _ in range(steps)] for _ in range(ranks)]
    if ranks > 1 and draw(st.booleans()):
        works[-1] = [each + 1000 for each in works[-1]]
    arrivals = [max(each) for each in zip(*works, strict=True)]
    events = {
        number: rank(each, marked=marked, device=device, collective=collective, arrivals=arrivals)
        for number, each in enumerate(works)
    }
    return events, draw(st.sampled_from([None, *events])), draw(st.sampled_from((0.0, 0.3, 0.7, 0.99)))


def agrees(case: tuple[dict[int, list[kineto.Event]], int | None, float], *, page: bool) -> str:
    events, cut, left = case
    with TemporaryDirectory() as folder:
        written = kineto.write_ranks(Path(folder) / "run", events)
        if cut is not None:
            file = sorted(written.iterdir())[cut]
            file.write_bytes(file.read_bytes()[: int(left * file.stat().st_size)])
        run = rankscope.open(written, executor="serial")
        try:
            assert run.traces
        except rankscope.RankscopeError:
            return "nothing to read"
        return agree(run, page=page)


@settings(max_examples=6)
@given(odd_runs())
def test_odd_runs(case: tuple[dict[int, list[kineto.Event]], int | None, float]) -> None:
    agrees(case, page=False)


@pytest.mark.slow
@settings(max_examples=20)
@given(odd_runs())
def test_many_odd_runs(case: tuple[dict[int, list[kineto.Event]], int | None, float]) -> None:
    agrees(case, page=True)


EVEN = [300.0, 304.0, 298.0, 301.0, 303.0, 299.0, 302.0, 300.0]


@pytest.mark.parametrize(
    ("state", "works", "collective"),
    [
        ("straggler", [[each + extra for each in EVEN] for extra in (0, 4, 400)], True),
        ("none", [EVEN, EVEN[::-1], [*EVEN[3:], *EVEN[:3]]], True),
        ("too-few-steps", [[300.0], [400.0]], True),
        ("too-few-steps", [[300.0], [300.0]], True),
        ("not-compared", [EVEN, [each + 100 for each in EVEN]], False),
        ("one-rank", [EVEN], True),
    ],
)
def test_every_state(state: str, works: list[list[float]], collective: bool) -> None:
    arrivals = [max(each) for each in zip(*works, strict=True)]
    events = {
        number: rank(each, marked=True, device=True, collective=collective, arrivals=arrivals)
        for number, each in enumerate(works)
    }
    assert agrees((events, None, 1.0), page=True) == state


@pytest.mark.parametrize("device", [True, False])
def test_a_pair_with_a_cut_file_is_not_compared(device: bool) -> None:
    """The heat map of such a run was red, next to "not compared"."""
    works = [EVEN, [each + 400 for each in EVEN]]
    events = {
        number: rank(each, marked=True, device=device, collective=True, arrivals=works[1])
        for number, each in enumerate(works)
    }
    assert agrees((events, 0, 0.9), page=False) == "not-compared"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_simulated_jobs(tmp_path: Path, seed: int) -> None:
    kinds = ("slow_device", "slow_host", "data_loading", "more_work")
    faults = (Fault(kinds[seed % 4], ranks=(seed % 3,), magnitude=(0.01, 0.05, 0.3)[seed % 3]),) if seed % 4 else ()
    simulate(tmp_path, Job(ranks=2 + seed % 3, steps=1 + seed % 6, seed=700 + seed, faults=faults))
    agree(rankscope.open(str(tmp_path), executor="serial"), page=True)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("name", [*SETS, *SLOW])
def test_real_traces(shared_traces: Path, name: str) -> None:
    files = [str(file) for file in files_of(shared_traces, name)]
    if not files:
        pytest.skip(f"the real traces {name} are not here")
    agree(rankscope.open(files if len(files) > 1 else files[0], executor="serial"))

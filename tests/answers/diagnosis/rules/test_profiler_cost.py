"""The profiler itself makes steps longer."""

from __future__ import annotations

from rankscope.answers.diagnosis.rules.profiler_cost import find
from rankscope.results import Finding, Inputs, Options
from rankscope.rundir.manifest import RankManifest, StepSpan


def findings(*active: int, spread: int = 1) -> list[Finding]:
    capture = [
        RankManifest(
            rank=number,
            step_median_ns={"wait": 1000, "active": each},
            step_times=(
                StepSpan(5, "wait", tuple(range(980, 1021))),
                StepSpan(46, "active", (each - spread, each, each + spread)),
            ),
        )
        for number, each in enumerate(active)
    ]
    return find(Inputs(Options(), (), capture=capture))


def test_fires_where_recorded_steps_are_longer() -> None:
    (finding,) = findings(1020, 1300)
    assert finding.severity == "info"
    assert "30 %" in finding.title
    assert finding.ranks == (1,)
    assert [each.value for each in finding.evidence] == [1000, 300]


def test_does_not_fire_where_they_are_not() -> None:
    assert not findings(1020, 990)


def test_does_not_fire_where_that_may_be_chance() -> None:
    assert not findings(1300, spread=310)


def test_does_not_fire_where_nothing_was_measured() -> None:
    assert not find(Inputs(Options(), (), capture=[RankManifest(rank=0, step_median_ns={"active": 1000})]))

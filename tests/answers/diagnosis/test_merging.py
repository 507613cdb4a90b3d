"""Findings about the same time are one, and no time is saved twice: findings on jobs that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest
from tests.whatif.pencil import Job

from rankscope.answers.diagnosis.effects import OF_ANALYSES, STRAGGLER
from rankscope.answers.diagnosis.merging import COVERED, ON_ITS_OWN, merge
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.results import Finding, Inputs, Options, Severity, with_symptoms
from rankscope.whatif.options import scenarios_in
from rankscope.whatif.run import ReplayedRun

MS = 1_000_000


def job(
    *ranks: tuple[float, float], transfer: float = 2, steps: int = 4, kernels: Sequence[float] | None = None
) -> ReplayedRun:
    """One segment per step; of each rank the host's and the device's time in ms."""
    of_steps = kernels or [1.0] * steps
    host = [[round(host * MS)] * steps for host, _ in ranks]
    device = [[round(device * each * MS) for each in of_steps] for _, device in ranks]
    return Job(host, device, [round(transfer * MS)] * steps, 1).run()


def step_of(run: ReplayedRun) -> int:
    return round(run.fidelity.recorded_ns)


def inputs(**frames: pl.DataFrame) -> Inputs:
    parts = {"compute_ns": [2 * MS, MS, MS, MS], "exposed_communication_ns": MS, "data_loading_ns": 0}
    times = pl.DataFrame({"rank": [0, 1, 2, 3], "window": 0, "step": 1, "window_ns": 9 * MS, **parts})
    return Inputs(Options(), (), results={"step_time": times, **frames})


def stragglers(ranks: int, *late: tuple[int, str]) -> pl.DataFrame:
    """Of each late rank its cause."""
    causes = dict(late)
    rows = [(rank, None, causes.get(rank), f"rank={rank}" if rank in causes else None) for rank in range(ranks)]
    schema = {"rank": pl.Int64, "step": pl.Int64, "cause": pl.String, "fix": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def gaps(*late_ms: float) -> pl.DataFrame:
    """How long each rank's device waits for launches."""
    late = [round(each * MS) for each in late_ms]
    return pl.DataFrame({"rank": range(len(late)), "late_ns": late, "late_short_ns": 0})


def found(name: str, saving_ms: float | None, *ranks: int, severity: Severity = "warning") -> Finding:
    saving = None if saving_ms is None else round(saving_ms * MS)
    title = f"Rank {ranks[0]} delays the other ranks" if name == STRAGGLER else name
    return Finding(name, severity, title, ranks=ranks, saving_ns=saving)


def merged(run: ReplayedRun | None, known: Inputs, *findings: Finding, step: int | None = None) -> list[Finding]:
    of_run = step_of(run) if run is not None else None
    return merge(findings, all_rules().values(), known, step or of_run, run)


def tree(findings: list[Finding]) -> dict[str, list[str]]:
    """The ids of findings, and of the symptoms of each."""
    return {each.id: [below.id for below in each.symptoms] for each in findings}


def saved_ms(findings: list[Finding]) -> dict[str, float]:
    return {each.id: round((each.saving_ns or 0) / MS, 2) for each in findings}


def test_the_cause_leads_and_what_it_makes_longer_hangs_below() -> None:
    """Rank 0 computes for 9 ms where the others do for 6."""
    run = job((0, 9), (0, 6), (0, 6), (0, 6))
    known = inputs(stragglers=stragglers(4, (0, "slow_device")))
    [only] = merged(run, known, found("imbalance", 2.25, 0), found(STRAGGLER, 3, 0))
    assert (only.id, only.saving_ns) == (STRAGGLER, 3 * MS)
    assert [(each.id, each.saving_ns) for each in only.symptoms] == [("imbalance", 2.25 * MS)]
    assert "same compute takes longer" in only.symptoms[0].because


def test_a_stall_costs_the_steps_to_come_nothing() -> None:
    """It was a warning, before findings that save something: "up to 0 of the 4.35 ms step can be saved"."""
    [stall] = merged(job((0, 6), (0, 6)), inputs(), found("stall", None, 0, severity="info"))
    assert (stall.severity, stall.cost_ns, stall.weight_ns) == ("info", None, 0)


def test_a_slow_device_does_not_explain_late_launches() -> None:
    """Every host takes 10 ms until it launches 6 ms of work, whatever a device takes."""
    run = job((10, 7), (10, 6), (10, 6))
    known = inputs(stragglers=stragglers(3, (0, "slow_device")), idle_by_step=gaps(9, 9, 9))
    findings = merged(run, known, found(STRAGGLER, 1, 0), found("launch_bound", 9, 0, 1, 2))
    assert tree(findings) == {STRAGGLER: [], "launch_bound": []}


@pytest.mark.parametrize(
    ("hosts", "gaps_of", "below", "counted"),
    [
        # Rank 0's host launches late, the others' hosts do not: the same time.
        ((12, 0, 0, 0), (6, 0, 0, 0), True, None),
        # All of them do, rank 0's somewhat more: what the others have stays, and is rank 0's usual amount too.
        ((12, 10, 10, 10), (6, 4, 4, 4), False, 4),
    ],
)
def test_late_launches_of_a_slow_host(
    hosts: tuple[float, ...], gaps_of: tuple[float, ...], below: bool, counted: float | None
) -> None:
    run = job(*((host, 4) for host in hosts))
    known = inputs(stragglers=stragglers(4, (0, "slow_host")), idle_by_step=gaps(*gaps_of))
    findings = merged(run, known, found(STRAGGLER, 2, 0), found("launch_bound", gaps_of[0], 0))
    assert tree(findings)[STRAGGLER] == (["launch_bound"] if below else [])
    if counted is not None:
        assert saved_ms(findings)["launch_bound"] == pytest.approx(counted, abs=0.05)
        (other,) = (each for each in findings if each.id == "launch_bound")
        assert [each.value for each in other.evidence if each.name == ON_ITS_OWN] == [6 * MS]


def test_what_overlaps_anyway_saves_nothing() -> None:
    """Hosts that are ahead of their devices: without their time the step would be no shorter."""
    run = job((3, 10), (3, 10))
    findings = merged(run, inputs(idle_by_step=gaps(2, 2)), found("graph_breaks", 2, 0, 1))
    assert saved_ms(findings) == {"graph_breaks": 0}
    assert findings[0].severity == "info"
    # Where the replay is not known, the rule's own bound stands.
    assert saved_ms(merged(None, inputs(), found("graph_breaks", 2, 0, 1), step=12 * MS)) == {"graph_breaks": 2}


def test_a_cause_that_accounts_for_less_than_half_leaves_a_finding_alone() -> None:
    run = job((12, 3), (10, 3), (10, 3), (10, 3))
    known = inputs(stragglers=stragglers(4, (0, "slow_host")), idle_by_step=gaps(9, 7, 7, 7))
    assert COVERED == 0.5
    first, second = merged(run, known, found(STRAGGLER, 2, 0), found("launch_bound", 9, 0))
    assert (first.id, second.id) == ("launch_bound", STRAGGLER)
    # The host of every rank takes 10 ms; without its time, 3 ms of work and 2 ms of transfer remain.
    assert (first.saving_ns or 0) / MS == pytest.approx(5, abs=0.05)


def test_exposed_communication_that_is_waiting_is_a_symptom() -> None:
    """Rank 0 is 5 ms late; a transfer takes 0.3 ms, and the others wait."""
    run = job((0, 9), (0, 4), (0, 4), transfer=0.3)
    known = inputs(stragglers=stragglers(3, (0, "slow_device")))
    exposed = found("exposed_communication", 3, 1, 2)
    assert tree(merged(run, known, found(STRAGGLER, 5, 0), exposed)) == {STRAGGLER: ["exposed_communication"]}
    # What is left of transfers that take 4 ms is a finding of its own.
    longer = job((0, 9), (0, 4), (0, 4), transfer=4)
    both = merged(longer, known, found(STRAGGLER, 5, 0), exposed)
    assert tree(both) == {STRAGGLER: [], "exposed_communication": []}


def test_two_late_ranks_explain_together_what_neither_explains_alone() -> None:
    run = job((12, 4), (12, 4), (0, 4), (0, 4))
    both = stragglers(4, (0, "slow_host"), (1, "slow_host"))
    known = inputs(stragglers=both, idle_by_step=gaps(8, 8, 0, 0))
    late = [replace(found(STRAGGLER, None, rank), cost_ns=8 * MS) for rank in (0, 1)]
    findings = merged(run, known, found("launch_bound", 8, 0, 1), *late)
    assert [each.title for each in findings] == ["Rank 0 delays the other ranks", "Rank 1 delays the other ranks"]
    assert [each.id for each in findings[0].symptoms] == ["launch_bound"]


def test_a_straggler_weighs_what_it_costs() -> None:
    known = inputs(stragglers=stragglers(2, (0, "slow_device")))
    [only] = merged(job((0, 9.2), (0, 9)), known, found(STRAGGLER, 0.2, 0))
    assert (only.severity, only.saving_ns) == ("info", 0.2 * MS)


def test_a_cause_is_as_severe_as_its_symptoms() -> None:
    run = job((0, 6.6), (0, 6))
    known = inputs(stragglers=stragglers(2, (0, "more_work")))
    straggler = found(STRAGGLER, 0.3, 0, severity="info")
    [only] = merged(run, known, straggler, found("imbalance", 0.6, 0))
    assert (only.id, only.severity, tree([only])) == (STRAGGLER, "warning", {STRAGGLER: ["imbalance"]})


def test_a_part_of_a_step_is_saved_once() -> None:
    """Without any time of the host, a step of 10 ms is 6 ms of work and 2 ms of transfer, whatever the host did."""
    run = job((10, 6), (10, 6))
    findings = merged(run, inputs(), found("silent_host", 1.5, 0, 1), found("graph_breaks", 1, 0, 1))
    assert saved_ms(findings) == {"silent_host": 1.5, "graph_breaks": pytest.approx(0.5, abs=0.01)}


def test_savings_never_add_up_to_more_than_a_step() -> None:
    findings = merged(
        None, inputs(), *(found(f"other_{at}", 7, at) for at in range(2)), found("other_3", 5), step=10 * MS
    )
    assert [each.saving_ns for each in findings] == [7 * MS, 3 * MS, None]


def test_memory_findings_without_a_saving_join_a_straggler_on_the_same_ranks() -> None:
    run = job((0, 9), (0, 6))
    known = inputs(stragglers=stragglers(2, (0, "memory")))
    late = found(STRAGGLER, 3, 0)
    assert tree(merged(run, known, late, found("memory_retries", None, 0))) == {STRAGGLER: ["memory_retries"]}
    both = merged(run, known, late, found("memory_retries", None, 0, 1))
    assert tree(both) == {STRAGGLER: [], "memory_retries": []}


def test_without_a_step_time_nothing_is_merged_or_limited() -> None:
    findings = [found(STRAGGLER, 2, 0), found("imbalance", 9, 0)]
    assert merged(None, inputs(), *findings) == [findings[1], findings[0]]


def test_nothing_is_lost() -> None:
    run = job((0, 9), (0, 6))
    known = inputs(stragglers=stragglers(2, (0, "slow_device")))
    others = [found("plugin", 0.2), found("missing", None)]
    given = [found(STRAGGLER, 3, 0), *(found(name, 1, 0) for name in all_rules()), *others]
    shown = with_symptoms(merged(run, known, *given))
    assert sorted(each.id for each in shown) == sorted(each.id for each in given)
    assert sum(each.saving_ns or 0 for each in merged(run, known, *given)) <= step_of(run)


def test_every_declared_cause_exists_and_none_causes_itself() -> None:
    declared = {name: each.symptom_of for name, each in (*all_rules().items(), *OF_ANALYSES.items())}
    known = {*declared, STRAGGLER}

    def causes(name: str) -> set[str]:
        return {cause for each in declared.get(name, ()) for cause in (each.of.partition(":")[0],)}

    for name in declared:
        assert causes(name) <= known, name
        reached, frontier = set[str](), causes(name)
        while frontier:
            reached |= frontier
            frontier = {further for each in frontier for further in causes(each)} - reached
        assert name not in reached, f"{name} would be a symptom of itself"


def test_what_is_merged_is_otherwise_as_stated() -> None:
    run = job((0, 9), (0, 6))
    stated = found("imbalance", 1.5, 0)
    [only] = merged(run, inputs(stragglers=stragglers(2, (0, "slow_device"))), found(STRAGGLER, 3, 0), stated)
    assert replace(only.symptoms[0], because="", scenarios=()) == stated


def test_a_finding_names_the_scenarios_of_the_replay_that_it_is_about() -> None:
    run = job((0, 9), (0, 6))
    stated = (found(STRAGGLER, 3, 0), found("imbalance", 1.5, 0), found("low_occupancy", 1), found("unknown", 1))
    every = with_symptoms(merged(run, inputs(stragglers=stragglers(2, (0, "slow_device"))), *stated))
    assert {each.id: each.scenarios for each in every} == {
        STRAGGLER: ("--fix rank=0",), "imbalance": ("--balance ranks",),
        # That compute takes no time is a bound that nobody can ask for.
        "low_occupancy": (), "unknown": (),
    }  # fmt: skip
    for option in (option for each in every for option in each.scenarios):
        assert run.gain(scenarios_in(option)) is not None
    assert {each.scenarios for each in merged(None, inputs(), *stated, step=10 * MS)} == {()}

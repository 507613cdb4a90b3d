"""Findings about the same time are one, and no time is saved twice: frames and findings by hand, in microseconds."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from rankscope.diagnosis.effects import OF_ANALYSES, STRAGGLER
from rankscope.diagnosis.merging import COVERED, ON_ITS_OWN, merge
from rankscope.diagnosis.rules import all_rules
from rankscope.results import Finding, Inputs, Options, with_symptoms

STEP = 1000
"""ns: four ranks, one step each of compute 600, exposed communication 300 and idle time 100 unless a test says else."""


def inputs(*ranks: dict[str, int], **frames: pl.DataFrame) -> Inputs:
    """The results of a run: of each rank its parts of the step."""
    usual = {
        "compute_ns": 600, "exposed_communication_ns": 300, "exposed_memcpy_ns": 0, "exposed_memset_ns": 0,
        "runtime_ns": 0, "data_loading_ns": 0, "host_op_ns": 100, "other_ns": 0,
    }  # fmt: skip
    rows = [{"rank": at, "window": 0, "step": 1, "window_ns": STEP, **usual, **parts} for at, parts in enumerate(ranks)]
    return Inputs(Options(), (), results={"step_time": pl.DataFrame(rows), **frames})


def stragglers(ranks: int, *late: tuple[int, str, int, int]) -> pl.DataFrame:
    """Of each late rank its cause, how much that explains, and how long the others waited for it."""
    causes = {rank: (cause, cause_ns, waited) for rank, cause, cause_ns, waited in late}
    rows = [(rank, None, *causes.get(rank, (None, None, 0)), 1) for rank in range(ranks)]
    numbers = dict.fromkeys(("cause_ns", "waited_ns", "steps"), pl.Int64)
    schema = {"rank": pl.Int64, "step": pl.Int64, "cause": pl.String, **numbers}
    return pl.DataFrame(rows, schema=schema, orient="row")


def waits(*by_rank: int | None, exposed: int = 300) -> pl.DataFrame:
    """How much of each rank's exposed communication is waiting: None if that is not known, 0 if it has none."""
    rows = [
        (rank, wait or 0, exposed - wait if wait else 0, exposed * (wait is None)) for rank, wait in enumerate(by_rank)
    ]
    names = ("rank", "exposed_synchronizing_ns", "exposed_transfer_ns", "exposed_unmatched_ns")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


def gaps(*late: int) -> pl.DataFrame:
    """How long each rank's device waits for launches."""
    return pl.DataFrame({"rank": range(len(late)), "late_ns": late, "late_short_ns": 0})


def late(rank: int, saving: int | None) -> Finding:
    return Finding(STRAGGLER, "warning", f"Rank {rank} delays the other ranks", ranks=(rank,), saving_ns=saving)


def found(name: str, saving: int | None, *ranks: int, severity: str = "warning") -> Finding:
    return Finding(name, severity, name, ranks=ranks, saving_ns=saving)  # type: ignore[arg-type]


def merged(run: Inputs, *findings: Finding) -> list[Finding]:
    return merge(findings, all_rules().values(), run, STEP)


def tree(findings: list[Finding]) -> dict[str, list[str]]:
    """The ids of findings, and of the symptoms of each."""
    return {each.id: [below.id for below in each.symptoms] for each in findings}


def test_the_cause_leads_and_what_it_makes_longer_hangs_below() -> None:
    slow = {"compute_ns": 800, "exposed_communication_ns": 100}
    run = inputs(slow, {}, {}, {}, stragglers=stragglers(4, (0, "slow_device", 200, 200)))
    [only] = merged(run, found("imbalance", 240, 0), late(0, 200))
    assert (only.id, only.saving_ns) == (STRAGGLER, 200)
    assert [(each.id, each.saving_ns) for each in only.symptoms] == [("imbalance", 240)]
    assert "same compute takes longer" in only.symptoms[0].because


def test_a_stall_costs_the_steps_to_come_nothing() -> None:
    """It was a warning, before findings that save something: "up to 0 of the 4.35 ms step can be saved"."""
    run = inputs({}, {"exposed_communication_ns": 400}, stragglers=stragglers(2, (0, "slow_host", 0, 400)))
    [stall] = merged(run, found("stall", None, 0, severity="info"))
    assert (stall.severity, stall.cost_ns, stall.weight_ns) == ("info", None, 0)


def test_a_stall_leads_as_a_straggler_does() -> None:
    once = stragglers(3, (0, "slow_host", 200, 200))
    run = inputs({"host_op_ns": 300}, {}, {}, stragglers=once, launch_gaps=gaps(200, 0, 0))
    assert tree(merged(run, found("stall", 200, 0), found("launch_bound", 200, 0))) == {"stall": ["launch_bound"]}


def test_a_slow_device_does_not_explain_late_launches() -> None:
    run = inputs({}, {}, {}, {}, stragglers=stragglers(4, (0, "slow_device", 200, 200)), launch_gaps=gaps(90, 0, 0, 0))
    assert tree(merged(run, late(0, 200), found("launch_bound", 90, 0))) == {STRAGGLER: [], "launch_bound": []}


@pytest.mark.parametrize(
    ("gaps_of", "below", "counted"),
    [
        # Rank 0's host launches late, the others' hosts do not: the same time.
        ((300, 0, 0, 0), True, None),
        # All of them do, rank 0's somewhat more: what the others have stays, and is rank 0's usual amount too.
        ((300, 200, 200, 200), False, 200),
        # The others have some, too little to be a warning of its own.
        ((300, 40, 40, 40), True, None),
    ],
)  # fmt: skip
def test_late_launches_of_a_slow_host(gaps_of: tuple[int, ...], below: bool, counted: int | None) -> None:
    run = inputs(
        {"host_op_ns": 400, "exposed_communication_ns": 0}, *3 * [{"host_op_ns": 200}],
        stragglers=stragglers(4, (0, "slow_host", 200, 200)), launch_gaps=gaps(*gaps_of),
    )  # fmt: skip
    findings = merged(run, late(0, 200), found("launch_bound", 300, 0))
    assert tree(findings)[STRAGGLER] == (["launch_bound"] if below else [])
    if counted is not None:
        other = next(each for each in findings if each.id == "launch_bound")
        assert other.saving_ns == counted
        assert [each.value for each in other.evidence if each.name == ON_ITS_OWN] == [300]


def test_a_cause_that_accounts_for_less_than_half_leaves_a_finding_alone() -> None:
    some = stragglers(4, (0, "slow_host", 100, 100))
    run = inputs({"host_op_ns": 400}, {}, {}, {}, stragglers=some, launch_gaps=gaps(400, 0, 0, 0))
    assert COVERED == 0.5
    first, second = merged(run, late(0, 100), found("launch_bound", 400, 0))
    assert (first.id, first.saving_ns, second.id, second.saving_ns) == ("launch_bound", 300, STRAGGLER, 100)


def test_exposed_communication_is_waiting_where_there_is_no_room_for_both() -> None:
    late_rank = stragglers(3, (0, "slow_host", 250, 250))
    exposed = found("exposed_communication", 200, 1, 2)
    # Waits are not known: of 300 exposed, 250 can be waiting, and the 300 stated as transfer cannot be beside it.
    unknown = inputs({"exposed_communication_ns": 0}, {}, {}, stragglers=late_rank, distributed=waits(0, None, None))
    assert tree(merged(unknown, late(0, 250), exposed)) == {STRAGGLER: ["exposed_communication"]}
    # They are known, and not part of what is stated as transfer: there is room for both.
    known = inputs({"exposed_communication_ns": 0}, {}, {}, stragglers=late_rank, distributed=waits(0, 100, 100))
    assert tree(merged(known, late(0, 100), exposed)) == {"exposed_communication": [], STRAGGLER: []}


def test_two_late_ranks_explain_together_what_neither_explains_alone() -> None:
    slow = {"host_op_ns": 300, "exposed_communication_ns": 100}
    both = stragglers(4, (0, "slow_host", 200, 150), (1, "slow_host", 190, 140))
    run = inputs(slow, slow, {}, {}, stragglers=both, launch_gaps=gaps(200, 190, 0, 0))
    findings = merged(run, found("launch_bound", 200, 0, 1), late(1, None), late(0, None))
    assert [each.title for each in findings] == ["Rank 0 delays the other ranks", "Rank 1 delays the other ranks"]
    assert [each.id for each in findings[0].symptoms] == ["launch_bound"]
    # Neither saves anything alone, as the other is as slow: they cost what the others wait for them.
    assert [(each.saving_ns, each.cost_ns, each.severity) for each in findings] == [
        (None, 150, "warning"), (None, 140, "warning"),
    ]  # fmt: skip


def test_several_stragglers_together_explain_no_more_waiting_than_there_is() -> None:
    late_ranks = stragglers(4, (0, "slow_host", 100, 150), (1, "slow_device", 100, 150))
    own, waiting = {"exposed_communication_ns": 0}, {"exposed_communication_ns": 250}
    known = waits(0, 0, 150, 150, exposed=250)
    run = inputs(own, own, waiting, waiting, stragglers=late_ranks, distributed=known)
    # Of 250, 150 are waiting for either: the other 100 are transfer.
    findings = merged(run, late(0, 100), late(1, 100), found("exposed_communication", 100, 2, 3))
    assert tree(findings)["exposed_communication"] == []


def test_a_straggler_weighs_what_it_costs() -> None:
    run = inputs({}, {}, stragglers=stragglers(2, (0, "slow_host", 20, 20)))
    [only] = merged(run, late(0, 20))
    assert (only.severity, only.saving_ns) == ("info", 20)


def test_a_cause_is_as_severe_as_its_symptoms() -> None:
    run = inputs({"compute_ns": 660}, {}, stragglers=stragglers(2, (0, "more_work", 40, 30)))
    [only] = merged(run, late(0, 30), found("imbalance", 60, 0))
    assert (only.id, only.severity, tree([only])) == (STRAGGLER, "warning", {STRAGGLER: ["imbalance"]})


def test_a_part_of_a_step_is_saved_once() -> None:
    run = inputs({"host_op_ns": 300}, launch_gaps=gaps(250))
    first, second = merged(run, found("launch_bound", 250, 0), found("graph_breaks", 200, 0))
    assert (first.saving_ns, second.saving_ns) == (250, 50)


def test_savings_never_add_up_to_more_than_a_step() -> None:
    run = inputs({}, {})
    findings = merged(run, *(found(f"other_{at}", 700, at) for at in range(2)), found("other_3", 500))
    assert [each.saving_ns for each in findings] == [700, 300, None]
    assert sum(each.saving_ns or 0 for each in findings) == STEP


def test_the_symptom_of_a_symptom_hangs_below_the_cause() -> None:
    run = inputs(
        {"data_loading_ns": 300, "exposed_communication_ns": 0, "host_op_ns": 0}, {}, {},
        stragglers=stragglers(3, (0, "data_loading", 300, 300)),
        synchronization=pl.DataFrame({"rank": [0], "per_step_ns": [280]}),
    )  # fmt: skip
    findings = merged(run, found("synchronizing_calls", 280, 0), found("data_loading", 300, 0), late(0, 300))
    assert tree(findings) == {STRAGGLER: ["data_loading", "synchronizing_calls"]}


def test_memory_findings_without_a_saving_join_a_straggler_on_the_same_ranks() -> None:
    run = inputs({"host_op_ns": 300}, {}, stragglers=stragglers(2, (0, "memory", 200, 200)))
    assert tree(merged(run, late(0, 200), found("memory_retries", None, 0))) == {STRAGGLER: ["memory_retries"]}
    both = merged(run, late(0, 200), found("memory_retries", None, 0, 1))
    assert tree(both) == {STRAGGLER: [], "memory_retries": []}


def test_without_a_step_time_nothing_is_merged_or_limited() -> None:
    findings = [late(0, 200), found("imbalance", 900, 0)]
    assert merge(findings, all_rules().values(), Inputs(Options(), ()), None) == [findings[1], findings[0]]


def test_nothing_is_lost() -> None:
    run = inputs({"compute_ns": 800}, {}, stragglers=stragglers(2, (0, "slow_device", 200, 100)))
    given = [late(0, 200), *(found(name, 100, 0) for name in all_rules()), found("plugin", 20), found("missing", None)]
    shown = with_symptoms(merged(run, *given))
    assert sorted(each.id for each in shown) == sorted(each.id for each in given)


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
    run = inputs({"compute_ns": 800}, {}, stragglers=stragglers(2, (0, "slow_device", 200, 100)))
    stated = found("imbalance", 200, 0)
    [only] = merged(run, late(0, 200), stated)
    assert replace(only.symptoms[0], because="") == stated

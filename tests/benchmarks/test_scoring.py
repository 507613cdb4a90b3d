"""What counts as right."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.diagnosis.replay import standard_error
from benchmarks.diagnosis.scoring import Case, Done, Said, summary, table, verdicts

from rankscope.primitives.stragglers.observations import Observations


def done(rank: int, cause: str, cost: float = 0.1) -> Done:
    return Done(frozenset([rank]), (cause,), cost, cause)


def diagnosis(rank: int, cause: str) -> Said:
    return Said(frozenset([rank]), cause, 1)


def test_one_thing_done_must_be_said_first() -> None:
    right = Case("a", (done(3, "memory"),), (diagnosis(3, "memory"), diagnosis(1, "memory")))
    second = Case("b", (done(3, "memory"),), (diagnosis(1, "memory"), diagnosis(3, "memory")))
    cause = Case("c", (done(3, "memory"),), (diagnosis(3, "unclear"),))
    assert [(v.rank, v.cause) for case in (right, second, cause) for v in verdicts(case)] == [
        (True, True),
        (False, False),
        (True, False),
    ]


def test_of_two_things_done_each_must_be_among_the_first_two() -> None:
    case = Case(
        "a",
        (done(3, "memory"), done(5, "slow_host")),
        (diagnosis(5, "slow_host"), diagnosis(3, "slow_host"), diagnosis(9, "x")),
    )
    assert [(v.rank, v.cause) for v in verdicts(case)] == [(True, False), (True, True)]


def test_a_whole_that_holds_others_too_is_not_right() -> None:
    group = Said(frozenset([3, 4]), "memory", 1)
    assert [v.rank for v in verdicts(Case("a", (done(3, "memory"),), (group,)))] == [False]


def test_figures() -> None:
    cases = [
        Case("a", (done(3, "memory", 0.06),), (diagnosis(3, "memory"),)),
        Case("b", (), (diagnosis(1, "x"),)),
        Case("c", (), ()),
    ]
    assert summary(cases) == [
        "- faults that cost 5% of a step or more: 1; rank right 100.0 % (1), cause right 100.0 % (1)",
        "- accusations: 2, of a rank that something was done to: 50.0 % (1)",
        "- clean runs: 2; with an accusation: 50.0 % (1); with a stall: 0.0 % (0)",
    ]
    assert table(cases)[2] == "| 5%–10% | 1 | 100.0 % (1) | 100.0 % (1) |"


def test_what_is_less_than_three_standard_errors_is_counted_with_all_and_apart() -> None:
    noisy = Done(frozenset([3]), ("memory",), 0.1, "memory", error=0.04)
    lines = summary([Case("a", (noisy,), ()), Case("b", (done(3, "memory"),), (diagnosis(3, "memory"),))])
    assert lines[0].startswith("- faults that cost 5% of a step or more: 2; rank right 50.0 % (1)")
    assert lines[1].startswith("- of these, less than three standard errors of the local time: 1; rank right 0.0 % (0)")


def test_the_standard_error_is_of_the_ranks_that_nothing_was_done_to() -> None:
    # A step takes 100 ns; rank 3 has the fault.
    local = np.array([[104, 96], [100, 100], [96, 104], [150, 150]])
    # In each step 104 - 98 = 6, 100 - 100 = 0 and 96 - 102 = -6: √(24) = 4.9 of 100, by √2 for two steps.
    found = standard_error(Observations.of({"compute": local}, 100.0), [3], 2)
    assert found == pytest.approx(24**0.5 / 2**0.5 / 100)
    # Of two ranks: rank 0 less the median of both by 2, 0 and -2, about their median 0.
    pair = np.array([[104, 100, 96], [100, 100, 100]])
    found = standard_error(Observations.of({"compute": pair}, 100.0), [0], 3)
    assert found == pytest.approx((8 / 3) ** 0.5 / 3**0.5 / 100)

"""Who is behind a wait."""

from __future__ import annotations

import numpy as np

from rankscope.primitives.arrival_skew import arrivals_by_event
from rankscope.primitives.stragglers.waits import arrivals_within_programs, reassign_by_local_time


def test_of_two_programs_only_the_last_ones_ranks_are_compared() -> None:
    # Ranks 0 and 1 run one program, 2 and 3 another, which comes 100 later by design; 3 is 7 later than 2.
    event, arrival, role = np.zeros(4, dtype=np.int64), np.array([0, 4, 100, 107]), np.array([0, 0, 1, 1])
    found = arrivals_by_event(event, arrival)
    inside, late = arrivals_within_programs(event, arrival, role, found)
    assert (inside.first_ns.tolist(), inside.second_ns.tolist(), late.tolist()) == ([100], [100], [7])
    assert found.late[found.last].tolist() == [103]
    # One program, or nobody else of the last one's: all are compared.
    for alike in (np.zeros(4, dtype=np.int64), np.array([0, 0, 0, 1])):
        same, late = arrivals_within_programs(event, arrival, alike, found)
        assert (same.first_ns.tolist(), late.tolist()) == ([0], [103])


def test_who_has_no_own_time_hands_the_blame_to_who_has() -> None:
    ranks, steps = np.array([0, 3, 5]), np.array([10, 11])
    excess = np.array([[-5.0, 2.0], [90.0, 80.0], [60.0, np.nan]])
    accused = np.array([[False, False], [True, False], [False, False]])

    def answers(blamed: int, step: int, late: int) -> int:
        return int(
            reassign_by_local_time(*(np.array([each]) for each in (blamed, step, late)), ranks, steps, excess, accused)[
                0
            ]
        )

    assert answers(0, 10, 100) == 3  # rank 0 has no own time to show for it, rank 3 has 90
    assert answers(0, 10, 200) == 0  # nor does rank 3's explain half of it
    assert answers(5, 10, 100) == 5  # it was long enough itself
    assert answers(0, 11, 100) == 0  # nobody is accused in that step
    assert answers(0, 12, 100) == 0  # which was not compared
    assert answers(7, 10, 100) == 7  # nor was that rank
    assert answers(-1, 10, 100) == -1

"""Which steps of which ranks are compared: by hand."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.stragglers.observations import LAUNCHED, observe
from rankscope.primitives.stragglers.paces import COLUMNS
from rankscope.primitives.stragglers.timeline import PARTS

NOTHING = pl.DataFrame(schema=dict.fromkeys(("rank", *COLUMNS), pl.Int64) | {"of_host": pl.Boolean})


def compared(*elapsed: list[int], on_host: bool) -> list[list[int]]:
    """By rank, the steps in which it is compared: whole ones that take so long, from 0."""
    rows = [
        {"rank": rank, "step": step, "elapsed_ns": ns, "count": 1, "collectives": 1, "own_ns": ns, "first": False}
        | dict.fromkeys(PARTS, 0)
        for rank, steps in enumerate(elapsed)
        for step, ns in enumerate(steps)
    ]
    role = dict.fromkeys(range(len(elapsed)), 0)
    seen = observe(pl.DataFrame(rows), pl.DataFrame(schema=LAUNCHED), NOTHING, role, on_host=on_host)
    return [seen.steps[known].tolist() for known in seen.known]


@pytest.mark.parametrize("on_host", [True, False])
def test_a_step_in_which_a_clock_was_set_is_not_compared(on_host: bool) -> None:
    # Of two ranks nothing shows whose.
    assert compared([100] * 5, [100, 180, 100, 100, 100], on_host=on_host) == [[0, 2, 3, 4]] * 2
    assert compared([100] * 5, [100, 20, 100, 100, 100], on_host=on_host) == [[0, 2, 3, 4]] * 2
    assert compared([100] * 3, [100] * 3, [100, 180, 100], on_host=on_host) == [[0, 1, 2], [0, 1, 2], [0, 2]]


def test_what_a_host_does_after_its_last_collective_is_no_clock() -> None:
    # Rank 1 pauses for 80 at the end of step 1, and the others wait for it in step 2.
    elapsed = [100, 100, 180, 100], [100, 180, 100, 100]
    assert compared(*elapsed, on_host=True) == [[0, 1, 2, 3]] * 2
    # Steps of a device end with a collective, on all ranks at once.
    assert compared(*elapsed, on_host=False) == [[0, 3]] * 2

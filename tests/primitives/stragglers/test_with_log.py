"""One verdict of traces and log: both by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.causes import Cause
from rankscope.primitives.stragglers.detectors import always_late, late_at_times, stalled_once
from rankscope.primitives.stragglers.host_items import GAP, SCHEMA
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.step_log import LateRank, StepLog
from rankscope.primitives.stragglers.stragglers import Comparison, Straggler
from rankscope.primitives.stragglers.thread_excess import CodePlace, ThreadExcess
from rankscope.primitives.stragglers.with_log import judged, logged_cause, of_log

MS = 1_000_000
NONE = pl.DataFrame(schema={"rank": pl.Int64, **SCHEMA})
YES, NO, FEW = Significance.SIGNIFICANT, Significance.NOT_SIGNIFICANT, Significance.TOO_FEW


def comparison(*by_rank: list[float]) -> Comparison:
    """Local times by rank and step, ms."""
    local = (np.array(by_rank) * MS).astype(np.int64)
    return Comparison(Observations.of({"operators": local}, 100.0 * MS, on_host=True))


def late(rank: int, excess: float, *, kind: str = always_late.__name__, saving: float | None = None) -> LateRank:
    cause = Cause("unclear", 0.0, "")
    saving_ns = round((excess if saving is None else saving) * MS)
    found = Straggler(
        (rank,), f"rank {rank}", cause, round(excess * MS), False, saving_ns, (), tuple(range(50)), 50, 50, kind,
        Verdict(YES, "mean excess", (50,)),
    )  # fmt: skip
    at = ThreadExcess(0, 0, round(excess * MS), place=CodePlace("job.py", 9, "<module>"), place_ns=round(excess * MS))
    return LateRank(found, rank, "forward", round(excess * MS), None, at)


def log(*found: LateRank, other: Significance = NO) -> StepLog:
    ranks = {each.rank for each in found}
    verdicts = {rank: Verdict(YES if rank in ranks else other, "", (50,)) for rank in range(2)}
    return StepLog(50, 100 * MS, found, verdicts, 2 * MS)


THREE = ([50.0, 50, 50], [51.0, 50, 50])
MANY = ([50.0, 51] * 10, [80.0, 81] * 10)


def test_the_log_decides_where_the_traces_have_too_few_steps() -> None:
    stragglers, verdicts = judged(comparison(*THREE), NONE, None)
    assert stragglers == []
    assert {each and each.significance for each in verdicts.values()} == {FEW}
    (found,), verdicts = judged(comparison(*THREE), NONE, log(late(1, 40)))
    assert (found.ranks, found.excess_ns, found.lasting) == ((1,), 40 * MS, True)
    # In none of these three steps: the cause is the log's.
    assert found.cause.named == "it sleeps or is blocked at job.py:9"
    assert {rank: each and each.significance for rank, each in verdicts.items()} == {0: NO, 1: YES}


def test_what_the_traces_show_of_it_comes_before_what_the_log_knows() -> None:
    slow = comparison([50, 50, 50], [90, 90, 91])
    (found,), _ = judged(slow, NONE, log(late(1, 40)))
    assert found.excess_ns == 40 * MS
    assert "longer than the others" in found.cause.evidence


def test_the_side_with_more_steps_gives_the_delay() -> None:
    of_traces = judged(comparison(*MANY), NONE, None)[0][0].excess_ns
    few_logged = replace(late(1, 40), found=replace(late(1, 40).found, compared=15))
    (found,), _ = judged(comparison(*MANY), NONE, log(few_logged))
    assert found.excess_ns == of_traces != 40 * MS
    (found,), _ = judged(comparison(*MANY), NONE, log(late(1, 40)))
    assert found.excess_ns == 40 * MS


def test_late_in_the_recorded_steps_only() -> None:
    (found,), verdicts = judged(comparison(*MANY), NONE, log())
    assert (found.ranks, found.passing, found.is_past) == ((1,), True, True)
    assert found.title.startswith("Rank 1 was late in the recorded steps, not in the others that are logged: ")
    assert all(each is not None and each.significance is NO for each in verdicts.values())
    # A log that cannot tell rules nothing out.
    (found,), _ = judged(comparison(*MANY), NONE, log(other=FEW))
    assert not found.passing


def test_a_rank_behind_a_later_one_and_a_single_stall_are_no_stragglers() -> None:
    assert judged(comparison(*THREE), NONE, log(late(1, 40), late(0, 4, saving=0.5)))[0][0].ranks == (1,)
    assert len(judged(comparison(*THREE), NONE, log(late(0, 4, saving=0.5)))[0]) == 0
    assert judged(comparison(*THREE), NONE, log(late(1, 40, kind=stalled_once.__name__)))[0] == []
    assert of_log(log(late(1, 40, kind=stalled_once.__name__), late(0, 4, saving=0.5))) == []


def test_in_some_steps() -> None:
    (found,), _ = judged(comparison(*THREE), NONE, log(late(1, 8, kind=late_at_times.__name__)))
    assert found.title == "Rank 1 delays the other ranks in some steps: it sleeps or is blocked at job.py:9"


def test_a_place_in_each_of_three_steps_of_two_ranks() -> None:
    rows = [(1, step, GAP, "SGD.step\x1faten::randn", 30 * MS, 1) for step in range(3)]
    items = pl.DataFrame(rows, schema=NONE.schema, orient="row")
    slow = comparison([50.0, 51, 50], [80.0, 81, 79])
    assert judged(slow, NONE, None)[0] == []
    (found,), verdicts = judged(slow, items, None)
    assert found.ranks == (1,)
    assert found.title.endswith("nothing is recorded between SGD.step and aten::randn")
    assert str(verdicts[1]) == "significant (at one place in every step, where no other rank is, 3 steps)"
    # It is not late by that: something else made up for it.
    assert judged(comparison([50.0, 51, 50], [52.0, 53, 51]), items, None)[0] == []


def test_without_a_trace_the_phase_is_the_cause() -> None:
    unknown = replace(late(1, 40), thread=ThreadExcess())
    assert logged_cause(unknown).named == "it takes longer in forward"
    loading = replace(unknown, phase="data loading")
    assert logged_cause(loading).cause == "data_loading"
    assert of_log(log(loading))[0].title == "Rank 1 delays the other ranks: it waits for data"

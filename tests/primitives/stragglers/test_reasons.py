"""The cause by its name: items of two ranks by hand, and what is said of them."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.stragglers.causes import CAUSES, Cause
from rankscope.primitives.stragglers.host_items import (
    COLLECTION,
    FUNCTION,
    GAP,
    MODULE,
    OPERATOR,
    OPERATORS,
    SHAPES,
)
from rankscope.primitives.stragglers.host_scopes import BETWEEN
from rankscope.primitives.stragglers.reasons import excesses, named, recurs, state
from rankscope.primitives.stragglers.thread_excess import CodePlace, ThreadExcess
from rankscope.store.account import SHAPES as RECORDED_SHAPES
from rankscope.store.account import STACKS

MS = 1_000_000
HOST = Cause("slow_host", 1.0, "in its late steps it takes 30 ms longer than the others' median")
SLEEP = f"SGD.step{BETWEEN}aten::randn"


def frame(rows: list[tuple[int, int, str, str, float, int]]) -> pl.DataFrame:
    """rank, step, kind, label, ms, count."""
    names = ["rank", "step", "kind", "label", "ns", "count"]
    return pl.DataFrame([(*row[:4], round(row[4] * MS), row[5]) for row in rows], schema=names, orient="row")


def in_steps(kind: str, label: str, mine: float, theirs: float, counts: tuple[int, int] = (1, 1)) -> pl.DataFrame:
    """An item of rank 1 and of rank 0 in each of three steps, ms."""
    rows = [
        (rank, step, kind, label, ms, count)
        for step in (1, 2, 3)
        for rank, ms, count in ((1, mine, counts[0]), (0, theirs, counts[1]))
        if ms
    ]
    return frame(rows)


def reason(*items: pl.DataFrame, excess: float, thread: ThreadExcess | None = None, cause: Cause = HOST) -> Cause:
    found = excesses(pl.concat(items), 1, [0], [1, 2, 3], on_host=True)
    return named(cause, excess * MS, found, thread, logged_ns=excess * MS if thread is not None else 0.0)


def test_a_stretch_without_events_by_what_is_around_it() -> None:
    found = reason(in_steps(GAP, SLEEP, 31, 1), in_steps(OPERATOR, "aten::mm", 12, 10), excess=30)
    assert (found.cause, found.named) == ("silent", "nothing is recorded between SGD.step and aten::randn")
    assert found.share == 1.0
    assert found.evidence == HOST.evidence
    assert found.longer[0] == "nothing recorded between SGD.step and aten::randn: 30 ms"
    assert "--with-stack" in found.what_to_do(())


def test_the_log_knows_whether_it_slept_or_ran_and_where() -> None:
    gap = in_steps(GAP, SLEEP, 31, 1)
    asleep = ThreadExcess(running_ns=1 * MS, ready_ns=0, asleep_ns=29 * MS)
    assert reason(gap, excess=30, thread=asleep).named.endswith("and aten::randn: it sleeps or is blocked")
    at = ThreadExcess(1 * MS, 0, 29 * MS, place=CodePlace("/home/me/job.py", 25, "<module>"), place_ns=28 * MS)
    found = reason(gap, excess=30, thread=at)
    assert (found.cause, found.named) == ("code", "it sleeps or is blocked at job.py:25")
    inside = ThreadExcess(29 * MS, 0, 1 * MS, place=CodePlace("/home/me/job.py", 7, "tokenize"), place_ns=28 * MS)
    assert reason(gap, excess=30, thread=inside).named == "it runs tokenize (job.py:7)"


def test_the_innermost_function_that_explains_most() -> None:
    items = [
        in_steps(FUNCTION, "train.py(30): main", 90, 60, (1, 1)),
        in_steps(FUNCTION, "train.py(7): tokenize", 30, 0, (2, 2)),
        in_steps(FUNCTION, "train.py(2): lower", 4, 0, (3, 3)),
        in_steps(GAP, SLEEP, 31, 1),
    ]
    found = reason(*items, excess=30)
    assert (found.cause, found.named) == ("code", "it runs tokenize (train.py:7)")
    assert "on the other ranks it takes 0 µs per step" in found.what_to_do(())
    called = f"<built-in function sleep>{BETWEEN}train.py(9): load"
    assert reason(in_steps(FUNCTION, called, 30, 0), excess=30).named == "it calls sleep in load (train.py:9)"


def operators(factor: float, counts: tuple[int, int] = (10, 10), label: str = "") -> list[pl.DataFrame]:
    names = ("aten::linear", "aten::relu", "AddmmBackward0", "aten::mean")
    each = [in_steps(OPERATOR, name, factor * 8, 8, counts) for name in names]
    return [*each, in_steps(OPERATORS, label, factor * 32, 32, (4 * counts[0], 4 * counts[1]))]


def test_all_operators_by_one_factor() -> None:
    found = reason(*operators(4), excess=96)
    words = "more work in each operator, or a slower core: AddmmBackward0 and others take 4 times as long"
    assert (found.cause, found.named) == ("pace", words)
    assert "--record-shapes" in found.what_to_do(())
    # Of the same shapes it is no more work.
    found = reason(*operators(4, label=SHAPES), excess=96)
    words = "a slower core: of equal shapes, AddmmBackward0 and others take 4 times as long"
    assert (found.cause, found.named) == ("slow_host", words)
    # Four times as many.
    found = reason(*operators(4, (40, 10)), excess=96)
    assert (found.cause, found.named) == ("more_work", "it runs more operators (160 instead of 40 per step)")


def test_operators_by_several_factors() -> None:
    of_each = ((2, 10), (2, 10), (2, 10), (4, 8))
    longer = [in_steps(OPERATOR, f"aten::{n}", factor * ns, ns) for n, (factor, ns) in enumerate(of_each)]
    found = reason(*longer, in_steps(OPERATORS, "", 92, 38, (4, 4)), excess=54)
    assert found.named.endswith("aten::3 and others take 2 to 4 times as long")
    # A slower core would make all of them longer alike.
    found = reason(*longer, in_steps(OPERATORS, SHAPES, 92, 38, (4, 4)), excess=54)
    assert (found.cause, found.named) == ("operators", "its operators take longer, most of all aten::3")


def test_functions_and_operators() -> None:
    """Where all operators are longer, the function that calls them is not why; where they are others, it is."""
    calls = in_steps(FUNCTION, "train.py(7): forward", 130, 34, (2, 2))
    assert reason(*operators(4), calls, excess=96).cause == "pace"
    extra = [in_steps(OPERATOR, "aten::sort", 30, 0), in_steps(OPERATORS, "", 62, 32, (33, 32))]
    found = reason(*extra, in_steps(FUNCTION, "train.py(9): rank", 31, 0), excess=30)
    assert found.named == "it runs rank (train.py:9)"


def test_one_operator() -> None:
    items = [
        in_steps(OPERATOR, "aten::sort", 25, 5, (5, 5)),
        in_steps(OPERATOR, "aten::mm", 11, 10),
        in_steps(OPERATORS, "", 36, 15, (6, 6)),
    ]
    assert reason(*items, excess=21).named == "aten::sort takes longer (5 calls, each 4 ms longer)"
    only = [in_steps(OPERATOR, "aten::to", 20, 0), in_steps(OPERATORS, "", 52, 32, (33, 32))]
    assert reason(*only, excess=20).named == "it runs aten::to more often (1 instead of 0 per step)"
    fewer = [in_steps(OPERATOR, "aten::to", 20, 1, (1, 4)), in_steps(OPERATORS, "", 52, 33, (33, 36))]
    assert reason(*fewer, excess=19).named == "aten::to takes longer (1 instead of 4 per step)"
    # It is as much more often as all are.
    more = [in_steps(OPERATOR, "aten::mm", 20, 4, (8, 4)), in_steps(OPERATOR, "aten::add", 8, 6, (80, 40))]
    found = reason(*more, in_steps(OPERATORS, "", 28, 10, (88, 44)), excess=18)
    assert found.named == "it runs more operators (88 instead of 44 per step)"


def test_where_the_operators_run() -> None:
    at = ThreadExcess(29 * MS, 0, 1 * MS, place=CodePlace("/home/me/job.py", 17, "<module>"), place_ns=28 * MS)
    sort = [in_steps(OPERATOR, "aten::sort", 40, 10, (8, 2)), in_steps(OPERATORS, "", 62, 32, (36, 30))]
    found = reason(*sort, excess=30, thread=at)
    assert found.named == "it runs aten::sort more often (8 instead of 2 per step), at job.py:17"
    assert found.advice == "Look at where aten::sort is called on this rank, at job.py:17."
    # All of them, everywhere.
    assert reason(*operators(2), excess=32, thread=at).cause == "pace"


def test_the_innermost_module_is_where_the_excess_is() -> None:
    net = [in_steps(MODULE, "module Net_0", 60, 30, (0, 0)), in_steps(MODULE, "module Slow_1", 31, 2, (1, 1))]
    inside = in_steps(MODULE, "module Linear_4", 6, 2, (2, 2))
    sort = [in_steps(OPERATOR, "aten::sort", 31, 2, (5, 5)), in_steps(OPERATORS, "", 60, 31, (30, 30))]
    found = reason(*net, inside, *sort, excess=30)
    assert found.named == "aten::sort takes longer (5 calls, each 5.8 ms longer), in module Slow_1"
    found = reason(*net, in_steps(GAP, SLEEP, 31, 1), excess=30)
    assert (found.cause, found.named.endswith("and aten::randn, in module Slow_1")) == ("silent", True)
    found = reason(*net, in_steps(FUNCTION, "net.py(9): forward", 30, 2), excess=30)
    assert found.named == "it runs forward (net.py:9), in module Slow_1"
    # Nothing else has a name.
    found = reason(*net, excess=30)
    assert (found.cause, found.named) == ("code", "it takes longer in module Slow_1")
    assert found.what_to_do(()) == "Look at module Slow_1: on the other ranks it takes 2 ms per step."
    # With more work, too; and what has less than half of it is not where it is.
    work = Cause("more_work", 1.0, "")
    found = reason(*net, excess=30, cause=work)
    assert found.named == "it has more work, in module Slow_1"
    assert reason(*net, excess=30, cause=found) is found
    assert reason(*net, excess=90, cause=work) is work


def test_a_sleeping_thread_runs_no_operators() -> None:
    asleep = ThreadExcess(
        running_ns=0, ready_ns=0, asleep_ns=9 * MS, place=CodePlace("job.py", 25, "<module>"), place_ns=8 * MS
    )
    assert reason(*operators(1.3), excess=9, thread=asleep).named == "it sleeps or is blocked at job.py:25"


def test_collections_and_other_programs_come_first() -> None:
    gap = in_steps(GAP, SLEEP, 31, 1)
    assert reason(gap, in_steps(COLLECTION, "", 28, 0), excess=30).cause == "garbage_collection"
    assert reason(gap, excess=30, thread=ThreadExcess(collecting_ns=20 * MS)).cause == "garbage_collection"
    waits = ThreadExcess(running_ns=8 * MS, ready_ns=20 * MS, asleep_ns=4 * MS)
    found = reason(*operators(2), excess=32, thread=waits)
    assert (found.cause, found.named) == ("descheduled", "other programs run on its core")
    # It also runs for longer: that is named, and makes it wait for a core more often.
    works = ThreadExcess(running_ns=18 * MS, ready_ns=12 * MS, asleep_ns=0)
    found = reason(*operators(2), excess=32, thread=works)
    assert (found.cause, found.named.endswith("; other programs run on its core, too")) == ("pace", True)
    # Where it does so: a log that is written with fsync.
    writes = ThreadExcess(1 * MS, 28 * MS, 3 * MS, place=CodePlace("train.py", 8, "write"), place_ns=30 * MS)
    found = reason(gap, excess=32, thread=writes)
    assert found.named == "other programs run on its core, while it is in write (train.py:8)"
    # A thread that wakes up often waits for a core as often.
    sleeps = ThreadExcess(2 * MS, 12 * MS, 18 * MS, place=CodePlace("data.py", 9, "read"), place_ns=30 * MS)
    found = reason(gap, excess=32, thread=sleeps)
    assert found.named == "it sleeps or is blocked in read (data.py:9); other programs run on its core, too"
    parses = ThreadExcess(32 * MS, 0, 0, 20 * MS, CodePlace("data.py", 9, "parse"), 30 * MS)
    assert reason(gap, excess=32, thread=parses).named == "Python collects garbage, in parse (data.py:9)"


def test_specific_causes_keep_theirs() -> None:
    loading = Cause("data_loading", 1.0, "")
    gap = in_steps(GAP, SLEEP, 31, 1)
    assert reason(gap, excess=30, cause=loading).named == ""
    inside = ThreadExcess(29 * MS, 0, 1 * MS, place=CodePlace("data.py", 7, "__getitem__"), place_ns=28 * MS)
    found = reason(gap, excess=30, cause=loading, thread=inside)
    assert (found.cause, found.named) == ("data_loading", "it waits for data, in __getitem__ (data.py:7)")
    # Workers load: the loop itself waits for them.
    loop = ThreadExcess(0, 0, 30 * MS, place=CodePlace("train.py", 21, "main"), place_ns=28 * MS, in_loop=True)
    assert reason(gap, excess=30, cause=loading, thread=loop).named == ""
    work = Cause("more_work", 1.0, "")
    assert reason(gap, excess=30, cause=work) is work


def test_what_explains_less_than_half_has_no_name() -> None:
    assert reason(in_steps(GAP, SLEEP, 13, 1), excess=30).named == ""
    assert state(ThreadExcess(10, 10, 10), 30) == ""
    assert state(None, 30) == ""


def test_one_step_out_of_three_does_not_name_the_cause() -> None:
    once = frame([(1, 2, GAP, f"a{BETWEEN}b", 200, 1)])
    found = reason(once, in_steps(GAP, SLEEP, 31, 1), excess=30)
    assert found.named == "nothing is recorded between SGD.step and aten::randn"
    of_two = excesses(once, 1, [0], [1, 2], on_host=True)
    assert of_two["excess_ns"].to_list() == [0]


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ((30, 30, 31), (0, 0, 0), 30.333),
        ((30, 30, 31), (5, 5, 5), 25.333),
        ((30, 30, 31), (7, 0, 0), 28.0),
        ((30, 30, 0), (0, 0, 0), 0),  # not in every step
        ((30, 30, 9), (0, 0, 0), 0),  # too little in one
        ((30, 30, 31), (15, 15, 15), 0),  # the other is there, too
        ((300, 40, 40), (0, 0, 0), 0),  # one long hiccup
    ],
)
def test_a_place_in_every_step_is_no_chance(mine: tuple[int, ...], theirs: tuple[int, ...], found: float) -> None:
    rows = [(1, step, GAP, SLEEP, ms, 1) for step, ms in enumerate(mine) if ms]
    rows += [(0, step, GAP, SLEEP, ms, 1) for step, ms in enumerate(theirs) if ms]
    assert recurs(frame(rows), 1, [0], [0, 1, 2], 10 * MS) / MS == pytest.approx(found, rel=1e-3)


def test_a_slow_core_is_no_place() -> None:
    rows = [(rank, step, OPERATOR, "aten::mm", 60 if rank else 30, 1) for rank in (0, 1) for step in range(3)]
    assert recurs(frame(rows), 1, [0], [0, 1, 2], 10 * MS) == 0


def test_with_a_device_the_end_of_the_step_before_counts() -> None:
    items = frame([(1, 4, OPERATOR, "aten::to", 20, 1), (0, 4, OPERATOR, "aten::mm", 1, 1)])
    assert excesses(items, 1, [0], [5], on_host=True).is_empty()
    (row,) = excesses(items, 1, [0], [5], on_host=False).iter_rows(named=True)
    assert (row["label"], row["excess_ns"]) == ("aten::to", 20 * MS)


@pytest.mark.parametrize("cause", [*CAUSES, "unclear"])
def test_advice_never_asks_for_what_is_recorded(cause: str) -> None:
    plain = Cause(cause, 1.0, "")
    asked = {
        kind
        for kind, option in ((STACKS, "--with-stack"), (RECORDED_SHAPES, "--record-shapes"))
        if option in plain.what_to_do(())
    }
    for recorded in ({STACKS}, {RECORDED_SHAPES}, {STACKS, RECORDED_SHAPES}):
        advice = plain.what_to_do(recorded)
        assert advice.endswith((".", "`rankscope report`."))
        assert ("--with-stack" in advice) is (STACKS in asked - recorded)
        assert ("--record-shapes" in advice) is (RECORDED_SHAPES in asked - recorded)

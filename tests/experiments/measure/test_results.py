"""What the experiments write, and the error for a file that has none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rankscope.errors import RankscopeError
from rankscope.experiments.measure.files import load, load_all, path_in, save
from rankscope.experiments.measure.results import (
    SCHEMA,
    Binding,
    BoundVariant,
    Buckets,
    NumaNode,
    Overhead,
    Phases,
    ProfiledVariant,
    ProfilerCost,
    Recommendation,
    Scaling,
    Setting,
    Share,
    Size,
    Time,
    Topology,
    TraceSummary,
    Variant,
)
from rankscope.show.report.experiments.terminal import measured

SETTING = Setting(
    "2026-01-01T00:00:00+00:00",
    "train.py",
    ["rankscope"],
    0,
    0.99,
    "a method",
    8,
    1,
    5,
    20,
    1,
    "0.1.0",
    notes=["a \x1b[31mnote"],
)
OVERHEAD = Overhead(
    SETTING,
    "ddp",
    2,
    Phases(Time(50_000_000, 49_000_000, 51_000_000), backward=Time(30_000_000)),
    Phases(Time(40_000_000), backward=Time(20_000_000)),
    Time(10_000_000, 9_500_000, 10_500_000),
    Share(0.2, 0.19, 0.21),
    None,
    [],
)


def text_of(result):
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=200).print(measured(result))
    return out.getvalue()


def test_what_is_written_is_read(tmp_path):
    path = save(OVERHEAD, tmp_path / "new")
    assert path == path_in(tmp_path / "new", "overhead")
    assert load(Overhead, tmp_path / "new") == OVERHEAD
    assert load_all(tmp_path / "new") == [OVERHEAD]
    raw = json.loads(path.read_text())
    assert (raw["schema"], raw["measurement"], raw["sync"]["step"]["median_ns"]) == (SCHEMA, "overhead", 50_000_000)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["overhead.json"]


def test_an_unknown_field_is_passed_over(tmp_path):
    path = save(OVERHEAD, tmp_path)
    raw = json.loads(path.read_text())
    raw["added_later"] = 1
    path.write_text(json.dumps(raw))
    assert load(Overhead, tmp_path) == OVERHEAD


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 1}', "\x00", "[" * 100_000])
def test_a_file_that_is_none(tmp_path, content):
    path_in(tmp_path, "overhead").write_text(content)
    with pytest.raises(RankscopeError, match=r"overhead\.json: not a result of `rankscope measure overhead`"):
        load(Overhead, tmp_path)


def test_another_schema(tmp_path):
    path = save(OVERHEAD, tmp_path)
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "schema": 99}))
    with pytest.raises(RankscopeError, match="schema 99; this version reads overhead, schema 1"):
        load(Overhead, tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(RankscopeError, match="`rankscope measure scaling` writes it"):
        load(Scaling, tmp_path)
    assert load_all(tmp_path) == []


def test_the_table_says_the_numbers_and_obeys_nothing():
    text = text_of(OVERHEAD)
    assert "50.0 ms (49.0 to 51.0 ms)" in text
    assert "20.0 % (19.0 % to 21.0 %) of a step, measured with and without it: significant (99 % bootstrap" in text
    assert "forward and backward alone" not in text
    assert "+10.0 ms" in text
    assert "\x1b[31m" not in text


def test_which_overhead_is_which_and_how_much_of_it_is_waiting():
    passes = [Time(30_000_000), Time(20_000_000)]
    traced = TraceSummary("jobs/job-0", 4, 600, 300, 250, 163_500_000, 0.36, 0.257, exposed_wait_ns=157_400_000, rank=1)
    text = text_of(
        replace(
            OVERHEAD,
            sync=replace(OVERHEAD.sync, forward_backward=passes[0]),
            no_sync=replace(OVERHEAD.no_sync, forward_backward=passes[1]),
            forward_backward_overhead=Share(1 / 3, 0.3, 0.36),
            traced=traced,
        )
    )
    said = " ".join(text.split())
    assert "forward and backward 30.0 ms 20.0 ms +10.0 ms" in said
    assert (
        "Of forward and backward alone, without data loading and optimizer, it takes 33.3 % (30.0 % to 36.0 %)." in said
    )
    assert (
        "Exposed communication of the worst rank (rank 1), traced: 25.7 % of a step, 164 ms; 157 ms of it waiting"
        in said
    )
    unknown = text_of(replace(OVERHEAD, traced=replace(traced, exposed_wait_ns=None)))
    assert "waiting and transfer cannot be separated" in " ".join(unknown.split())
    size = Size("2", 2, 1, "done", step=Time(50), traced=traced)
    assert "25.7 %, 96.3 % waiting" in text_of(Scaling(SETTING, "weak", None, [size]))
    variant = Variant("base", {}, True, "done", step=Time(50), traced=traced)
    assert "164 ms, 96.3 % waiting" in text_of(
        Buckets(SETTING, "ddp", 2, [variant], Recommendation(None, None, "keep"))
    )


def test_a_study_with_a_size_that_failed():
    sizes = [
        Size("plain", 1, 1, "done", step=Time(100_000_000), speed_up=Share(1.0), efficiency=Share(1.0)),
        Size("2", 2, 1, "failed", error="no \x1b[31mport"),
        Size("4", 4, 1, "done", oversubscribed=True, step=Time(30_000_000), speed_up=Share(3.333, 3.2, 3.4)),
    ]
    text = text_of(Scaling(SETTING, "strong", "plain", sizes))
    assert "2 failed: no" in text
    assert "oversubscribed" in text
    assert "3.33 (3.20 to 3.40)" in text
    assert "\x1b[31m" not in text


def profiled(cost, name="recording"):
    variants = [
        ProfiledVariant("none", True, [], Time(50_000_000)),
        ProfiledVariant(name, False, [], Time(51_000_000), cost, cost.low is not None and cost.low > 0),
    ]
    return text_of(ProfilerCost(replace(SETTING, repeats=1, blocks=1, block_steps=1), 1, variants))


def test_a_difference_has_both_ends_and_one_of_three_verdicts():
    def row(cost):
        return next(line for line in profiled(cost).splitlines() if line.startswith("recording"))

    # The same two percent: too few blocks to say so, within the noise, and a cost; a saving has a minus sign.
    assert "–  too few steps to tell" in row(Share(0.02))
    assert "2.0 %" not in row(Share(0.02))
    assert "+2.0 % (−1.0 to +5.0 %)  not significant" in row(Share(0.02, -0.01, 0.05))
    assert "+2.0 % (+1.0 to +3.0 %)  significant" in row(Share(0.02, 0.01, 0.03))
    assert "−2.0 % (−3.0 to −1.0 %)  significant" in row(Share(-0.02, -0.03, -0.01))
    # The point is not the middle: half of the width would say 23.8 % ± 15.4, which excludes 0.
    assert "+23.8 % (−1.5 to +29.3 %)  not significant" in row(Share(0.238, -0.015, 0.293))


def test_one_of_a_thing_is_one():
    text = profiled(Share(0.02))
    assert text.startswith("Profiler overhead on 1 rank, device unknown\n")
    assert "1 job of each kind; in each 8 steps of warm-up, then up to 1 block of each condition: 1 step" in text
    assert "1 that counts;" in text
    host = Topology("0", 1, 1, [NumaNode(0, "0")], [], ["/sys"])
    bound = Binding(SETTING, 1, host, [BoundVariant("none", True, [], "done")], Recommendation(None, None, "keep"))
    assert "1 rank on 1 core (CPUs 0), 1 socket, 1 NUMA node, no device" in text_of(bound)


def test_an_overhead_within_its_noise_is_not_significant():
    text = text_of(replace(OVERHEAD, measured_overhead=Share(0.08, -0.4, 0.6)))
    assert "8.0 % (−40.0 % to 60.0 %) of a step, measured with and without it: not significant" in text
    text = text_of(replace(OVERHEAD, measured_overhead=Share(0.08)))
    assert "8.0 % of a step, measured with and without it: too few steps to tell" in text
    text = text_of(replace(OVERHEAD, sync_cost=Time(2_000_000, -3_000_000, 7_000_000)))
    assert "+2.00 ms (−3.00 to +7.00 ms)" in text


def test_the_differences_of_phases_have_both_ends():
    on = Phases(Time(50_000_000, 49_000_000, 51_000_000), optimizer=Time(5_000_000, 4_900_000, 5_100_000))
    off = Phases(Time(40_000_000, 39_000_000, 41_000_000), optimizer=Time(5_100_000, 5_000_000, 5_200_000))
    text = text_of(replace(OVERHEAD, sync=on, no_sync=off))
    # √(100² + 100²) = 141 µs to either side.
    assert "−100 µs (−241 to +41.4 µs)" in text


def test_a_variant_that_is_not_there_yet():
    variants = [
        Variant("as the script is", {}, True, "pending", step=Time(50_000_000)),
        Variant("bucket_cap_mb 1", {}, False, "pending"),
        Variant("static_graph", {}, False, "failed", error="no"),
    ]
    text = text_of(Buckets(SETTING, "ddp", 2, variants, Recommendation(None, None, "keep")))
    rows = [line.split() for line in text.splitlines()]
    assert next(row for row in rows if row[:1] == ["bucket_cap_mb"])[2] == "pending"
    assert next(row for row in rows if row[:1] == ["static_graph"])[1] == "failed"

"""Collectives matched by labels are matched, measured and reported as they are with all columns."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rankscope.primitives.bandwidth import with_waits_and_bandwidth
from rankscope.primitives.labeled_collectives import for_findings, label_rows, match_labeled, matched_blocks
from rankscope.primitives.matching import METHODS, match_with_calls

RANKS, STEPS, LAYERS = 6, 3, 5


def _rows(rng: np.random.Generator, *, recorded: bool, on_device: bool) -> list[pl.DataFrame]:
    """Blocks of two ranks each: two groups of three ranks, one of all, and channels; some rows are lost."""
    blocks = []
    end = np.sort(rng.integers(1_000_000, 90_000_000, STEPS * LAYERS * 3))
    for rank in range(RANKS):
        rows = []
        for number, at in enumerate(end.tolist()):
            if rng.random() < 0.05:
                continue
            kind = number % 3
            third = [rank % 3, rank % 3 + 3]
            half = [each for each in range(RANKS) if each // 3 == rank // 3]
            group, ranks = (("world", list(range(RANKS))), ("tp", half), ("pp", third))[kind]
            start = at - int(rng.integers(10_000, 800_000))
            sending = rank < 3
            rows.append(
                {
                    "rank": rank, "window": 0, "step": 10 + number // (3 * LAYERS), "group": group,
                    "group_size": len(ranks), "group_ranks": str(ranks), "sequence": number,
                    "collective": ("all_reduce", "all_gather", "send" if sending else "recv")[kind], "dtype": "Float",
                    "in_elements": 100 * (number % 2 + 1), "out_elements": 100 * (number % 2 + 1), "bytes": 400,
                    "stream": 7 + kind, "launch_ns": None, "start_ns": start + 5_000 * rank,
                    "end_ns": at + 5_000 * rank + int(rng.integers(0, 900)), "duration_ns": 0, "peers": None,
                    "source": "kernel" if on_device else "gloo", "calls": 1, "kernels": 1, "name": "kernel",
                    "recorded": number if recorded else None,
                    "source_rank": third[0] if kind == 2 else None,
                    "destination_rank": third[1] if kind == 2 else None,
                    "on_device": on_device, "unlaunched": 0, "base_ns": 1_000_000 * rank,
                }
            )  # fmt: skip
        frame = pl.DataFrame(rows, infer_schema_length=None).cast(
            {"recorded": pl.Int64, "source_rank": pl.Int64, "destination_rank": pl.Int64, "peers": pl.String}
        )
        blocks.append(frame.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns")))
    return [pl.concat(blocks[rank : rank + 2]) for rank in range(0, RANKS, 2)]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_labels_change_nothing(seed: int, recorded: bool, on_device: bool) -> None:
    blocks = _rows(np.random.default_rng(seed), recorded=recorded, on_device=on_device)
    rows = pl.concat(blocks).with_columns(pl.col("group_ranks").cast(pl.Categorical))
    expected = match_with_calls(rows, {0: "a", 1: "a"})
    labeled = label_rows(blocks)
    assert labeled is not None
    assert labeled.labels.height < rows.height / 2
    found = match_labeled(labeled, {0: "a", 1: "a"})
    assert (found.match >= 0).mean() > 0.5
    for name in ("match", "method", "group"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert (found.doubts, found.disagreeing, found.unplaced) == (
        expected.doubts, expected.disagreeing, expected.unplaced,
    )  # fmt: skip
    matched = rows.with_columns(
        pl.select(pl.when(pl.Series(expected.match >= 0)).then(pl.Series(expected.match))).to_series().alias("match"),
        pl.Series("match_method", [METHODS[code] for code in expected.method]),
    )
    together = pl.concat(list(matched_blocks(blocks, labeled, found, RANKS)))
    assert_frame_equal(together, with_waits_and_bandwidth(matched, RANKS), check_column_order=False)
    assert together["transfer_ns"].null_count() < together.height
    about = for_findings(labeled, found)
    for name in ("rank", "step", "group", "collective", "match", "match_method", "start_ns"):
        if name in about.columns:
            assert about[name].cast(together[name].dtype).to_list() == together[name].to_list(), name


@pytest.mark.parametrize("change", [{"group": None}, {"source": "launch"}, {"end_ns": None}])
def test_rows_without_a_group_or_times_are_left_to_the_others(change: dict[str, str | None]) -> None:
    blocks = _rows(np.random.default_rng(1), recorded=False, on_device=True)
    ((name, value),) = change.items()
    dtype = blocks[-1].schema[name]
    last = pl.int_range(pl.len()) == pl.len() - 1
    blocks[-1] = blocks[-1].with_columns(pl.when(last).then(pl.lit(value, dtype)).otherwise(name).alias(name))
    assert label_rows(blocks) is None


def test_no_rows() -> None:
    assert label_rows([]) is None
    assert label_rows([_rows(np.random.default_rng(1), recorded=False, on_device=True)[0].clear()]) is None

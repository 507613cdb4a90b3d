"""A rank's rows of a result are those that a filter gives, compressed or not, in any order of ranks."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rankscope.engine.pipeline.tasks import RankRows
from rankscope.results import CompressedFrame, StoredFrame

RANKS = [0, 0, 1, 3, 3, 3, 4]
IN_ORDER = pl.DataFrame({"rank": RANKS, "value": range(7)})
MIXED = pl.DataFrame({"rank": [*reversed(RANKS), None, 0], "value": range(9)})


@pytest.mark.parametrize("frame", [IN_ORDER, MIXED, IN_ORDER.clear()])
@pytest.mark.parametrize("pieces", [0, 1, 4])
def test_rows_of_a_rank(frame: pl.DataFrame, pieces: int) -> None:
    kept: StoredFrame = CompressedFrame([frame.head(pieces), frame.slice(pieces)]) if pieces else frame
    rows = RankRows(kept)
    for rank in (0, 4, 3, 1, 2, 0):
        assert_frame_equal(rows.of(rank), frame.filter(pl.col("rank") == rank))

"""Parts of many ranks in few frames: each comes back as it was put in."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rankscope.results.packed_parts import BLOCK, PackedParts, together
from rankscope.store.part_cache import Part

COUNT = 2 * BLOCK + 3


def _part(rank: int) -> Part:
    if rank % 7 == 3:
        return pl.DataFrame()
    frame = pl.DataFrame({"rank": [rank] * (rank % 4), "name": ["a name of more than twelve bytes"] * (rank % 4)})
    if rank % 5 == 1:
        return {"rows": frame, "lengths": pl.DataFrame({"n": [rank]})}
    return frame.with_columns(more=pl.lit(1)) if rank == BLOCK else frame


def _frames(part: Part) -> Mapping[str, pl.DataFrame]:
    return {"": part} if isinstance(part, pl.DataFrame) else part


def test_parts_come_back_in_the_order_of_ranks_whatever_the_order_of_arrival() -> None:
    packed = PackedParts(COUNT)
    lost = {5, BLOCK, COUNT - 1}
    for rank in reversed(range(COUNT)):
        packed.put(rank, None if rank in lost else _part(rank))
    expected = [_part(rank) for rank in range(COUNT) if rank not in lost]
    assert len(packed) == len(expected)
    for found, part in zip(packed, expected, strict=True):
        assert _frames(found).keys() == _frames(part).keys()
        for name, frame in _frames(part).items():
            assert_frame_equal(_frames(found)[name], frame)
    assert_frame_equal(_frames(packed[-1])[""], _frames(expected[-1])[""])


@pytest.mark.parametrize(("rows", "sizes"), [(1, [8 * BLOCK, 3]), (2000, [BLOCK] * 8 + [3])])
def test_parts_with_the_same_columns_are_one_frame_per_block(rows: int, sizes: list[int]) -> None:
    count = 8 * BLOCK + 3
    packed = PackedParts(count)
    for rank in reversed(range(count)):
        packed.put(rank, pl.DataFrame({"rank": [rank] * rows}))
    frames = [part for part in together(packed) if isinstance(part, pl.DataFrame)]
    # Small blocks are put together.
    assert [frame.height for frame in frames] == [rows * size for size in sizes]
    assert pl.concat(frames)["rank"].unique(maintain_order=True).to_list() == list(range(count))
    assert [frame.height for frame in packed if isinstance(frame, pl.DataFrame)] == [rows] * count


@pytest.mark.parametrize("size", [0, 1, BLOCK])
def test_all_parts_are_lost(size: int) -> None:
    packed = PackedParts(size)
    for rank in range(size):
        packed.put(rank, None)
    assert list(packed) == []
    assert list(together(packed)) == []

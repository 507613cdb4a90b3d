"""Keys are looked up as a plain search does it, whether they are dense or sparse."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.ingest.links import _look_up

_FIRST_KEYS = st.sampled_from([0, -7, 1 << 40, -(1 << 62)])


@pytest.mark.parametrize("span", [4, 40, 1 << 62])
@given(data=st.data(), first=_FIRST_KEYS)
def test_the_first_row_of_each_key(span: int, data: st.DataObject, first: int) -> None:
    key = st.none() | st.integers(first, first + span)
    keys = data.draw(st.lists(key, max_size=30))
    wanted = data.draw(st.lists(st.sampled_from([*keys, None, -(1 << 63), (1 << 63) - 1]) | key, max_size=30))
    found = _look_up(pl.Series(wanted, dtype=pl.Int64), pl.Series(keys, dtype=pl.Int64), "row")
    assert found.to_list() == [keys.index(each) if each is not None and each in keys else None for each in wanted]
    assert (found.name, found.dtype) == ("row", pl.Int32)

"""Tables of the page as files."""

from __future__ import annotations

import polars as pl
import pytest
from tests.show.web.asking import Asking


def test_a_table_as_parquet_has_the_analysis_rows_and_types(server: Asking) -> None:
    run = server.runs.shown.loaded.run
    assert run is not None
    answer = server.ask("/api/parquet/step_time")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="rankscope_step_time.parquet"'
    assert pl.read_parquet(answer.body).equals(run.step_time())
    with pytest.warns(FutureWarning, match="memory_steps is now memory by step"):
        old = server.ask("/api/parquet/memory_steps")
    assert pl.read_parquet(old.body).equals(run.memory(by="step"))
    with pytest.warns(FutureWarning, match="memory_steps"):
        assert server.ask("/api/table/memory_steps").json() == server.ask("/api/table/memory_by_step").json()
    assert server.ask("/api/parquet/nothing").status == 404
    assert server.ask("/api/parquet/..%2Fstep_time").status == 404

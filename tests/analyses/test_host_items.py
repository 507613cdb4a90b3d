"""What hosts do by name, and that it is computed for late ranks and their peers only."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl
import pytest

import rankscope
from rankscope.engine.pipeline.load import Loaded
from rankscope.experiments.simulate import Fault, Job, simulate


def test_stragglers_ask_for_the_late_rank_and_its_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault("data_loading", ranks=(1,), magnitude=0.3)
    simulate(tmp_path, Job(ranks=8, mesh={"dp": 4, "pp": 2}, steps=6, seed=3, faults=(fault,)), costs=False)
    asked: list[set[int]] = []
    of_ranks = Loaded.of_ranks

    def noted(loaded: Loaded, ranks: Collection[int]) -> Loaded:
        asked.append(set(ranks))
        return of_ranks(loaded, ranks)

    monkeypatch.setattr(Loaded, "of_ranks", noted)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    late = found.filter(pl.col("cause").is_not_null())["rank"].to_list()
    assert late == [1]
    # Those of its pipeline stage.
    (ranks,) = asked
    assert 1 in ranks
    assert len(ranks) == 4
    every = run.host_items()
    assert set(every["rank"]) == set(range(8))
    steps = run.step_time().select("rank", "step").unique()
    assert every.join(steps, on=["rank", "step"], how="anti").is_empty()

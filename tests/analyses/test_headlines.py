"""Headlines: every sentence has a value for each of its places, on a run that has all, and on runs that lack most."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.analyses import all_analyses
from rankscope.results import Analysis, Column, Headline, Result
from rankscope.show.export.formats import to_json
from rankscope.show.report.formatting import sentence

SPEAKING = sorted(name for name, analysis in all_analyses().items() if analysis.headline is not None)


def whole(headline: Headline) -> None:
    """Every place has a value, every value a place, and no value is empty."""
    assert re.findall(r"\{(\w+)\}", headline.text) and headline.text.endswith(".")
    assert sorted(re.findall(r"\{(\w+)\}", headline.text)) == sorted(each.name for each in headline.values)
    assert all(each.value not in (None, "") for each in headline.values)


def silent(headline: Headline) -> bool:
    return "{" not in headline.text


def test_on_the_reference_run(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    spoke = set()
    for name in SPEAKING:
        result = run.analyze(name)[name]
        if result.headline is not None and not silent(result.headline):
            whole(result.headline)
            spoke.add(name)
        content = json.loads(to_json(result, run.about()))
        assert content["headline"] == (result.headline.to_json() if result.headline else None)
    # What the reference run has nothing of: no FSDP, no modules, no snapshot, no pipeline, no manifests …
    assert len(spoke) >= 17, sorted(spoke)
    headline = run.analyze("overview")["overview"].headline
    assert headline is not None
    assert headline.values[0].value == run.overview()["step_ns"][0]


@pytest.mark.parametrize("events", [[], [kineto.op("aten::mm", 0, 10)], [kineto.kernel("k", 0, 10)]])
def test_on_runs_that_lack_most(tmp_path: Path, events: list[kineto.Event]) -> None:
    path = kineto.write(tmp_path / "r.json", kineto.trace([kineto.annotation("x", 0, 20), *events], rank=0))
    run = rankscope.open(path, executor="serial")
    for name, result in run.attempt(*SPEAKING).items():
        if result.headline is not None and not silent(result.headline):
            whole(result.headline)
        assert name in SPEAKING


@pytest.mark.parametrize("name", SPEAKING)
def test_no_row_no_sentence(name: str) -> None:
    analysis = all_analyses()[name]
    numbers = {"ns": pl.Int64, "count": pl.Int64, "bytes": pl.Int64, "ratio": pl.Float64, "ranks": pl.Int64}
    texts = ("name", "cause", "group", "collective", "module", "call", "device", "host", "dimension", "level", "label")
    schema = {c.name: numbers.get(c.unit, pl.String if c.name in texts else pl.Int64) for c in analysis.columns}
    if name == "overview":
        return  # it has one row always
    headline = Result(analysis, pl.DataFrame(schema=schema)).headline
    assert headline is None or silent(headline)


def test_one_that_fails_leaves_its_table(caplog: pytest.LogCaptureFixture) -> None:
    def broken(frame: pl.DataFrame) -> Headline | None:
        raise ZeroDivisionError

    analysis = Analysis("mine", "Mine.", (Column("a", pl.Int64, "", ""),), headline=broken)
    result = Result(analysis, pl.DataFrame({"a": [1]}))
    assert result.headline is None
    assert result.to_json({})["headline"] is None
    assert "mine" in caplog.text


def slowest(frame: pl.DataFrame) -> Headline | None:
    """A headline over all rows that it is given."""
    return Headline.of("The longest takes {most}.", most=(frame["time"].max(), "ns")) if frame.height else None


SLOWEST = Analysis(
    "slowest",
    "Slowest.",
    (Column("rank", pl.Int64, "", "the rank"), Column("time", pl.Int64, "ns", "its time")),
    headline=slowest,
)


@pytest.mark.parametrize(
    ("incomplete", "said"),
    [
        ({3}, "The longest takes 30 ns (without rank 3: incomplete)."),
        ({1, 2, 3}, "The longest takes 10 ns (without ranks 1-3: incomplete)."),
        ({3, 9}, "The longest takes 30 ns (without rank 3: incomplete)."),  # 9 is not in the table
        ({9}, "The longest takes 40 ns."),
        ({0, 1, 2, 3}, "The longest takes 40 ns."),  # nothing else is there to judge
        (set(), "The longest takes 40 ns."),
    ],
)
def test_a_sentence_names_the_incomplete_ranks_that_it_leaves_out(incomplete: set[int], said: str) -> None:
    frame = pl.DataFrame({"rank": [0, 1, 2, 3], "time": [10, 20, 30, 40]})
    headline = Result(SLOWEST, frame, incomplete=frozenset(incomplete)).headline
    assert headline is not None
    whole(headline)
    assert sentence(headline).replace("–", "-").replace(" ", " ") == said


def test_many_incomplete_ranks_are_counted_and_a_table_without_ranks_leaves_none_out() -> None:
    frame = pl.DataFrame({"rank": range(100), "time": range(100)})
    headline = Result(SLOWEST, frame, incomplete=frozenset(range(1, 100, 2))).headline
    assert headline is not None
    assert sentence(headline).replace(" ", " ") == "The longest takes 98 ns (without 50 ranks: incomplete)."
    alone = Result(SLOWEST, frame.drop("rank"), incomplete=frozenset({1})).headline
    assert alone is not None
    assert sentence(alone).replace(" ", " ") == "The longest takes 99 ns."


def test_of_a_run_with_a_cut_file_sentences_leave_its_rank_out(tmp_path: Path) -> None:
    run_folder = write_reference(tmp_path)
    (last,) = [path for path in sorted(run_folder.iterdir()) if "rank1" in path.name]
    whole_file = last.read_bytes()
    text = gzip.decompress(whole_file) if last.suffix == ".gz" else whole_file
    cut = text[: len(text) * 3 // 4]
    last.write_bytes(gzip.compress(cut) if last.suffix == ".gz" else cut)
    run = rankscope.open(run_folder, executor="serial")
    headline = run.analyze("step_time")["step_time"].headline
    assert headline is not None
    assert sentence(headline).endswith("(without rank 1: incomplete).")

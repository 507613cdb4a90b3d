"""torchtitan's structured logs: those of two ranks, written by torchtitan 0.3.0 (`recorded/`), and damaged ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.ingest.kineto import read_kineto

RECORDED = Path(__file__).parent / "recorded"


def lines(rank: int) -> list[str]:
    return gzip.decompress((RECORDED / f"titan_rank{rank}.jsonl.gz").read_bytes()).decode().splitlines()


def write(folder: Path, rank: int, text: str | None = None) -> Path:
    path = folder / "structured_logs" / f"trainer.global_rank_{rank}.20261125-22220{rank}-RZ7XDQ.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines(rank)) + "\n" if text is None else text)
    return path


def test_spans_are_ranges_of_the_durations_that_torchtitan_logged(tmp_path: Path) -> None:
    trace = read_kineto(str(write(tmp_path, 1)))
    records = [json.loads(line) for line in lines(1)]
    logged = [
        (r["log_type_name"].removesuffix("_end"), r["value"]) for r in records if r["log_type_name"].endswith("_end")
    ]
    ranges = trace.tables["annotations"]
    assert ranges.height == len(logged) == 13
    for name, value in logged:
        wanted = ranges["name"].str.starts_with("ProfilerStep#") if name == "step" else ranges["name"] == name
        durations = ((ranges["end_ns"] - ranges["start_ns"]) / 1e6).filter(wanted).to_list()
        # The records' times are taken next to the timer's.
        assert min(abs(duration - value) for duration in durations) < 1.0, name
    assert ranges["step"].drop_nulls().to_list() == [1, 2, 3]
    assert ranges.filter(ranges["name"] == "fwd_bwd")["depth"].to_list() == [1, 1, 1]
    assert trace.tables["counters"]["name"].to_list() == ["train.loss"] * 3
    assert json.loads(trace.tables["counters"]["values"][0]) == {"value": 2.5}
    assert {"training_start", "checkpoint_save_error"} <= set(trace.tables["other_events"]["name"])


def test_a_directory_of_logs_is_a_run(tmp_path: Path, shared_cache: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank)
    run = rankscope.open(tmp_path, executor="serial")
    assert run.ranks == [0, 1]
    spans = run.slices(name="fwd_bwd", by="rank").sort("rank")
    assert spans["calls"].to_list() == [3, 3]
    assert spans["total_ns"][1] > spans["total_ns"][0] > 30_000_000  # rank 1 slept 20 ms each, rank 0 10 ms
    # Traces next to the logs are the run.
    kineto.write(tmp_path / "profile_traces" / "rank0.json", kineto.trace([kineto.step(7, 0, 10)], rank=0))
    assert [info.rank for info in rankscope.open(tmp_path, executor="serial").load().traces] == [0]


@pytest.mark.parametrize("damage", ["cut", "garbage", "hostile"])
def test_damage_loses_what_it_hits(tmp_path: Path, damage: str) -> None:
    whole = lines(0)
    hostile = '{"delta_ms": 0, "log_type_name": "x_end", "log_type": "event", "pid": [], "tid": {}, "time_us": "soon"}'
    text = {
        "cut": "\n".join(whole)[:-300],
        "garbage": "\n".join([*whole[:5], "\x00not json", "[]", *whole[5:]]),
        "hostile": "\n".join([*whole, hostile, hostile.replace('"x_end"', '"x_start"')]),
    }[damage]
    trace = read_kineto(str(write(tmp_path, 0, text)))
    assert trace.tables["annotations"]["step"].drop_nulls().to_list() == [1, 2, 3]
    assert trace.losses.events == {"cut": 1, "garbage": 2, "hostile": 1}[damage]

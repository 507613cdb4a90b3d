"""A text that is cut where events with and without a category meet gives the rows that it gives uncut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.kineto import (
    collective,
    event,
    frame,
    kernel,
    launch,
    loading,
    memcpy,
    memory,
    memset,
    op,
    step,
    trace,
    write,
)

from rankscope.errors import RankscopeError
from rankscope.ingest import chunks
from rankscope.ingest.boundaries import pieces
from rankscope.ingest.kineto import KinetoTrace, read_kineto

# What producers write, and what none writes: texts, lists and null where numbers belong.
odd = st.one_of(st.none(), st.integers(-(2**40), 2**40), st.just(2**63), st.just("7"), st.just("seven"), st.just([1]))
KEYS = """External id,correlation,stream,grid,bytes,Seq,Rank,Collective name,dtype,Input Dims,Concrete Inputs,Python id,
Call stack,cbid,Sequence number,Process Group Name,Addr,unknown"""
CATEGORIES = """kernel,Kernel,gpu_memcpy,cpu_op,Operator,cuda_runtime,cuda_driver,python_function,ac2g,user_annotation,
gpu_user_annotation,cpu_instant_event,overhead,unknown category"""
keys = st.sampled_from(KEYS.replace("\n", "").split(","))
categories = st.sampled_from([*CATEGORIES.replace("\n", "").split(","), None])
events = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "i", "s", "f", "B", "E", "M"]), "cat": categories},
    optional={
        "name": st.sampled_from(["aten::mm", "record_param_comms", "[memory]", "ProfilerStep#3", "é", ""]),
        "pid": st.one_of(st.integers(0, 9), st.just("Spans")),
        "tid": st.one_of(st.integers(0, 9), st.just("Spans")),
        "ts": st.one_of(st.integers(0, 99), st.floats(0, 99).map(lambda n: round(n, 3)), st.none(), st.just("5.5")),
        "dur": st.one_of(st.integers(0, 9), st.none()),
        "id": st.integers(0, 9),
        "args": st.one_of(st.dictionaries(keys, odd, max_size=4), st.none()),
    },
).map(lambda made: {key: value for key, value in made.items() if key != "cat" or value is not None})

REAL = [
    step(1, 0, 900),
    op("aten::mm", 1, 5, external=3, sequence=4, dims=[[2, 3], []], **{"Concrete Inputs": ["", "1.5"]}),
    op("record_param_comms", 2, 3, external=4, sequence=9, **{"Collective name": "allreduce", "Seq": 6, "Rank": 1}),
    launch(3, 1, correlation=9, external=3),
    launch(4, 1, correlation=10, cat="cuda_driver", name="cuLaunchKernel"),
    kernel("gemm", 5, 6, correlation=9, external=3, grid=[1, 2, 3], **{"blocks per SM": 0.5}),
    collective(6, 7, correlation=10, sequence=5),
    memcpy(7, 1, size=64),
    memset(8, 1, size=32),
    frame("train.py(1): f", 0, 50, python_id=1),
    loading(9, 4),
    memory(9, 512, allocated=512, reserved=1024),
    event("ac2g", 3, ph="s", cat="ac2g", id=9, bp="e"),
    event("ac2g", 5, ph="f", cat="ac2g", id=9, bp="e"),
    event("fwdbwd", 2, ph="s", cat="fwdbwd", id=1),
    event("Context Sync", 10, 2, cat="cuda_sync", args={"stream": 7}),
]
NAMES = [event("process_name", 0, ph="M", pid=pid, args={"name": "python"}) for pid in range(3)]


def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "pieces", lambda text, reach=None: [text])


def both(path: Path, **how: Any) -> tuple[KinetoTrace | str, KinetoTrace | str]:
    """What a file gives, and what it gives uncut."""

    def read() -> KinetoTrace | str:
        try:
            return read_kineto(str(path), **how)
        except RankscopeError as error:
            return str(error)

    together = read()
    with pytest.MonkeyPatch.context() as patch:
        uncut(patch)
        return together, read()


def same(path: Path, **how: Any) -> None:
    one, other = both(path, **how)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for name, table in other.tables.items():
        # Rows of one start and end stand in the order of pieces: they are compared as a set of rows.
        left, right = (sorted(frame.rows(), key=repr) for frame in (one.tables[name], table))
        if name in ("collectives", "device_events", "host_ops", "annotations", "python_frames", "runtime_calls"):
            left, right = ([_without_rows(one.tables[name].columns, row) for row in rows] for rows in (left, right))
            left, right = sorted(left, key=repr), sorted(right, key=repr)
        assert left == right, name
    assert (one.counts, one.losses, one.odd, one.metadata) == (other.counts, other.losses, other.odd, other.metadata)
    assert one.extent == other.extent


def _without_rows(columns: list[str], row: tuple[Any, ...]) -> list[Any]:
    """A row without what points at others, whose order is free where they are alike."""
    free = ("row", "launch_row", "op_row", "parent_row", "depth", "self_ns")
    return [value for name, value in zip(columns, row, strict=True) if name not in free]


# A text has the number of its first appearance: here is one only, so that the order of pieces makes no difference.
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(made=st.lists(events, max_size=10), chunk_bytes=st.sampled_from([200, 1 << 20]))
def test_whatever_events_are_they_give_the_same(
    tmp_path_factory: pytest.TempPathFactory, made: list[Any], chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("typed")
    # Among events of known categories, so that some chunks are read in one way and some in the other.
    path = write(folder / "t.json", trace([*NAMES[:1], *REAL[:3], *made, *REAL[3:6]]))
    same(path, chunk_bytes=chunk_bytes)


def test_blocks_without_a_category_are_cut_off() -> None:
    many = REAL * 300
    text = json.dumps([*NAMES, *many, *NAMES, REAL[0], *NAMES]).encode()
    for reach in (None, 1 << 12):
        cut = pieces(text, reach)
        # A short text between two blocks goes with them.
        assert [len(json.loads(piece)) for piece in cut] == [3, len(many), 7]
        assert [each for piece in cut for each in json.loads(piece)] == json.loads(text)
    assert pieces(json.dumps(many).encode()) == [json.dumps(many).encode()]
    # So many blocks are not worth it, and the text between them is not lost.
    mixed = json.dumps([*many, *NAMES] * 20).encode()
    assert len(pieces(mixed)) < 12
    assert [each for piece in pieces(mixed) for each in json.loads(piece)] == json.loads(mixed)


@pytest.mark.parametrize("chunk_bytes", [pytest.param(3000, marks=pytest.mark.slow), 1 << 16, 1 << 22])
def test_real_layouts(tmp_path: Path, chunk_bytes: int) -> None:
    made = trace([*NAMES, *REAL * 200, *NAMES, event("Iteration Start", 0, ph="i", s="g")])
    for number, text in enumerate(
        (json.dumps(made), json.dumps(made, indent=2), json.dumps(made, separators=(",", ":")))
    ):
        same(write(tmp_path / f"{number}.json", text.encode(), None), chunk_bytes=chunk_bytes)


@pytest.mark.slow
def test_all_real_traces(shared_traces: Path) -> None:
    files = sorted(path for path in shared_traces.rglob("*.gz") if path.stat().st_size < 3 << 20)
    assert len(files) > 20
    for path in files:
        one, other = both(path)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
            continue
        left, right = (_with_texts(each.tables) for each in (one, other))
        assert [name for name, table in right.items() if not left[name].equals(table)] == [], path
        assert (one.counts, one.losses, one.odd) == (other.counts, other.losses, other.odd), path


def _with_texts(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Tables in which processes and threads that are texts are these, not numbers by their first appearance."""
    tracks = tables["tracks"].filter(pl.col("field") == "text")
    texts = dict(tracks.select("tid", "value").iter_rows())
    found = {}
    for name, table in tables.items():
        ids = [column for column in ("pid", "tid") if column in table.columns]
        named = [
            pl.when(pl.col(each) < 0)
            .then(pl.col(each).replace_strict(texts, default=None, return_dtype=pl.String))
            .otherwise(pl.col(each).cast(pl.String))
            for each in ids
        ]
        found[name] = table.with_columns(named)
    found["tracks"] = found["tracks"].sort("pid", "tid", "field", "value")
    return found

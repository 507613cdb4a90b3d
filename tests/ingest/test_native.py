"""The compiled reader and the Python reader give the same; and what is plain is left to the compiled one."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.ingest.native_cases import differences, mutations, toolchain, write_pieces
from tests.ingest.test_boundaries import NAMES, REAL, events
from tests.ingest.test_fuzz import SYNTHETIC
from tests.kineto import dumps, memory, op, trace, write
from tests.soak import some_of

from rankscope.engine.pipeline import open_run
from rankscope.errors import ConfigError
from rankscope.ingest import native
from rankscope.ingest.chunks import EventStream
from rankscope.ingest.kineto import read_kineto

ABSENT = native.why_absent()
built = pytest.mark.skipif(ABSENT is not None, reason=ABSENT or "")


@pytest.mark.skipif("CI" not in os.environ or shutil.which("cargo") is None, reason="not in CI, or no cargo")
def test_it_is_built_in_ci() -> None:
    assert ABSENT is None


@built
def test_what_is_plain_is_taken() -> None:
    """Else the comparisons here would compare Python with itself."""
    for text in (json.dumps(REAL), json.dumps(REAL, indent=2), json.dumps(REAL, separators=(",", ":"))):
        piece = native.read_piece(text.encode())
        assert piece is not None
        assert sum(count for _, _, count in piece.groups) == len(REAL)
        kinds = [(table.kind, table.category, table.rows) for table in piece.tables]
        assert (native.MEMORY, "cpu_instant_event", 1) in kinds
        assert (native.RANGE, "cpu_op", 2) in kinds
        assert {"aten::mm", "gemm", "[memory]"} <= set(piece.texts)
        assert "[[2, 3], []]" in piece.values or "[[2,3],[]]" in piece.values or "[\n" in "".join(piece.values)


@built
def test_arguments_may_come_first(tmp_path: Path) -> None:
    first = [{"args": each["args"], **each} if "args" in each else each for each in REAL]
    assert '{"args"' in json.dumps(first)
    assert native.read_piece(json.dumps(first).encode()) is not None
    found = [read_kineto(str(write(tmp_path / "t.json", trace(made)))).tables for made in (REAL, first)]
    assert [name for name, table in found[0].items() if not table.equals(found[1][name])] == []


@built
def test_memory_events_without_a_category_are_taken(tmp_path: Path) -> None:
    """As 2021's files have them."""
    new = [memory(9, 512, allocated=512, reserved=1024)] * 99
    old = [{key: value for key, value in each.items() if key != "cat"} for each in new]
    text = json.dumps(old).encode()
    assert native.read_piece(text) is None
    piece = native.read_piece(text, only_memory=True)
    assert piece is not None
    assert piece.groups == [("i", None, 99)]
    for other in (REAL[0], NAMES[0], {**old[0], "name": "mark"}, {**old[0], "ph": "X"}, {**old[0], "cat": "kernel"}):
        assert native.read_piece(json.dumps([*old, other]).encode(), only_memory=True) is None
    far = {**old[0], "ts": 9e12}
    for number, made in enumerate(([*REAL, *old, *REAL], [*REAL, *old, far, *NAMES], [*old, *REAL])):
        file = write(tmp_path / f"{number}.json", trace(made))
        assert differences(file) == []
        assert differences(file, chunk_bytes=5000) == []


PLAIN = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"stream": 7}}
ODD = [
    {"cat": "unknown"},
    {"ph": "B"},
    {"name": None},
    {"ts": None},
    {"ts": "1.5"},
    {"ts": 1e-7},
    {"ts": 4611686018427388},
    {"dur": "2"},
    {"pid": 1.5},
    {"tid": [7]},
    {"pid": 2**63},
    {"args": None},
    {"args": []},
    {"args": {"stream": 7.0}},
    {"args": {"stream": True}},
    {"args": {"stream": "x"}},
    {"args": {"stream": "07"}},
    {"args": {"Collective name": 1}},
]


@built
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_what_is_unusual_is_left_to_python(odd: dict[str, Any]) -> None:
    assert native.read_piece(json.dumps([PLAIN]).encode()) is not None
    assert native.read_piece(json.dumps([PLAIN, {**PLAIN, **odd}]).encode()) is None


@built
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"stream": 7', b'"stream": 7, "stream": 7'),
        (b'"name": "k"', b'"name": "k", "name": "k"'),
        (b'"name"', b'"n\\u0061me"'),
        (b'"k"', b'"\xff"'),
        (b'"k"', b'"\\ud800"'),
        (b'"k"', b'"\\u0000"'),
        (b'"k"', b'"\\q"'),
        (b'"k"', b'"a\nb"'),
        (b'"ts": 1.5', b'"ts": 1.5000'),
        (b'"ts": 1.5', b'"ts": 01.5'),
        (b'"ts": 1.5', b'"ts": 1.'),
        (b'"ts": 1.5', b'"ts": 15e-1'),
        (b'"dur": 2', b'"dur": -0'),
        (b'"stream": 7', b'"unknown": ' + b"[" * 60 + b"]" * 60),
        (b'"stream": 7', b'"unknown": 01'),
        (b'"stream": 7', b'"unknown": nan'),
        (b'"stream": 7', b'"unknown": [1,]'),
        (b"}]", b"},]"),
        (b"}]", b"}]]"),
        (b"}]", b"}"),
        (b"[{", b"[[{"),
    ],
)
def test_what_is_no_plain_json_is_left_to_python(old: bytes, new: bytes) -> None:
    text = json.dumps([PLAIN]).encode()
    changed = text.replace(old, new, 1)
    assert changed != text
    assert native.read_piece(changed) is None


@built
def test_values_are_exact(tmp_path: Path) -> None:
    text = b"""[{"ph":"X","cat":"kernel","name":"\\u00e9\\ud83d\\ude00\\n\\"\\\\/\\/","pid":0,"tid":7,
        "ts":8796093022209.125,"dur":0.001,
        "args":{"est. achieved occupancy %":1.7976931348623157,"bytes":"128","grid": [1, 2,3]}},
        {"ph":"X","cat":"kernel","name":"","pid":"GPU","tid":"7","ts":8796093022209.12,"dur":-1,"args":{"bytes":null}},
        {"ph":"X","cat":"kernel","name":"last","pid":0,"tid":7,"ts":8796093022210.0,"dur":1}]"""
    assert native.read_piece(text) is not None
    found = read_kineto(str(write(tmp_path / "t.json", text, None))).tables["device_events"]
    assert found.select("start_ns", "end_ns", "name", "pid", "tid", "bytes", "grid", "stream").rows() == [
        (8796093022209120, 8796093022209120, "", -1, 7, None, None, None),
        (8796093022209125, 8796093022209126, 'é😀\n"\\//', 0, 7, 128, "[1,2,3]", 7),
        (8796093022210000, 8796093022211000, "last", 0, 7, None, None, 7),
    ]
    assert found["occupancy"].to_list() == [None, pl.Series([1.7976931348623157], dtype=pl.Float32)[0], None]


@built
@pytest.mark.parametrize("chunk_bytes", [300, 3000, 4 << 20])
def test_both_give_the_same_of_synthetic_traces(tmp_path: Path, chunk_bytes: int) -> None:
    long = op("x" * 70_000, 1, 2, **{"Call stack": "y" * 70_000, "Module Hierarchy": ""})
    far = memory(9e12, 512, allocated=512, reserved=1024)
    texts = [str(tid) for tid in range(3)] + ["Spans", "Traces", "Spans", "-7", "9" * 30]
    named = [{**each, "tid": text, "pid": text} for each, text in zip(REAL * 2, texts * 4, strict=False)]
    for number, made in enumerate(
        ([*NAMES, *REAL * 20, *NAMES], SYNTHETIC * 5, [*REAL, long], [*REAL * 9, far], [*named, *NAMES, *named])
    ):
        for indent in (None, 1):
            file = write(tmp_path / f"{number}.json", dumps(trace(made), indent=indent), None)
            assert differences(file, chunk_bytes=chunk_bytes) == []


@built
@settings(max_examples=60, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(made=st.lists(events, max_size=10), chunk_bytes=st.sampled_from([200, 1 << 20]))
def test_both_give_the_same_of_any_events(
    tmp_path_factory: pytest.TempPathFactory, made: list[Any], chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("native")
    file = write(folder / "t.json", trace([*NAMES[:1], *REAL[:3], *made, *REAL[3:6]]))
    assert differences(file, chunk_bytes=chunk_bytes) == []


@built
@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 60),
        pytest.param(1000, 200, marks=pytest.mark.slow),
        pytest.param(1200, 800, marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_both_give_the_same_of_damaged_traces(tmp_path: Path, seed: int, count: int) -> None:
    file = tmp_path / "t.json"
    for each, text, chunk_bytes in islice(mutations(seed), count):
        file.write_bytes(text)
        assert differences(file, chunk_bytes=chunk_bytes) == [], f"seed {each}, chunks of {chunk_bytes}"


@built
@pytest.mark.slow
@pytest.mark.parametrize("first", some_of(range(7), usual=[0]))
def test_both_give_the_same_wherever_a_file_is_cut(tmp_path: Path, first: int) -> None:
    whole = dumps(trace([*NAMES[:1], *REAL, *NAMES[:1]]))
    for end in range(first, len(whole), 7):
        assert differences(write(tmp_path / "t.json", whole[:end], None)) == [], end


@built
@pytest.mark.slow
def test_both_give_the_same_of_real_traces(shared_traces: Path) -> None:
    files = sorted(path for path in shared_traces.rglob("*.gz") if path.stat().st_size < 1 << 20)
    assert len(files) > 20
    for path in files:
        assert differences(path) == [], path


@built
def test_most_of_real_traces_is_taken(shared_traces: Path) -> None:
    for name in ("gloo-2ranks/ddp_gpt_minimal.rank0.json.gz", "tracelens/mi300/resnet_act_checkpoint.json.gz"):
        text = gzip.decompress((shared_traces / name).read_bytes())
        chunks = list(EventStream(_reader(text), name))
        assert sum(len(chunk.text) for chunk in chunks if chunk.piece is not None) > 0.99 * len(text)


def _reader(text: bytes) -> Any:
    parts = iter([text])
    return lambda size: next(parts, b"")


@built
def test_threads_read_at_once() -> None:
    text = json.dumps(REAL * 200).encode()
    expected, found = native.read_piece(text), []
    threads = [threading.Thread(target=lambda: found.append(native.read_piece(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert expected is not None
    for piece in found:
        assert (piece.groups, piece.tables, piece.texts) == (expected.groups, expected.tables, expected.texts)
        assert piece.integers.tolist() == expected.integers.tolist()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo here")
def test_mutated_pieces_with_the_checks_of_a_debug_build(tmp_path: Path) -> None:
    """Overflows, positions beyond a buffer and broken promises of the library end the process."""
    write_pieces(tmp_path / "from")
    command = ["cargo", "run", "--offline", "--locked", "--example", "fuzz", "--", "from/description", "from/pieces"]
    manifest = Path(__file__).resolve().parents[2] / "native" / "Cargo.toml"
    environment = {**os.environ, **toolchain(), "CARGO_TARGET_DIR": str(tmp_path / "target")}
    done = subprocess.run(
        [*command[:2], "--manifest-path", str(manifest), *command[2:], "1", "15"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    pieces, taken = map(int, re.findall(r"\d+", done.stdout))
    assert 0 < taken < pieces


def test_the_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "python")
    assert not native.wanted()
    monkeypatch.setenv(native.VARIABLE, "fast")
    with pytest.raises(ConfigError, match="fast"):
        native.wanted()


def test_a_wrong_choice_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was one for each file, with the hint that these were no traces."""
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", trace(REAL, rank=rank, world_size=2))
    monkeypatch.setenv(native.VARIABLE, "fast")
    with pytest.raises(ConfigError, match="RANKSCOPE_READER='fast'"):
        open_run(tmp_path, executor="serial").load()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process in which the library is not there: everything is read, and who insists on it is told why not."""
    file = write(tmp_path / "t.json", trace(REAL))
    code = f"""if True:
        from rankscope.ingest import native
        native.LIBRARY = "absent.so"
        from rankscope.ingest.kineto import read_kineto
        assert sum(read_kineto({str(file)!r}).counts.values()) == {len(REAL)}
        import os
        os.environ[native.VARIABLE] = "native"
        try:
            read_kineto({str(file)!r})
        except native.ConfigError as error:
            assert "cargo" in str(error)
        else:
            raise SystemExit("no error")
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_description_names_every_argument() -> None:
    description, kinds = native._description()
    for kind in kinds:
        for name in native._numbers(kind):
            assert any(hasattr(arguments(), name) for arguments in kind)
    assert description.count(b"category\t") == len(native.CATEGORIES)

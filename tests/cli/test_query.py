"""`rankscope query`: arguments, formats, and what it says when it cuts or refuses."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tests.analyses.reference import write_reference

from rankscope.cli import main
from rankscope.engine.query.examples import EXAMPLES

Ask = Callable[..., tuple[object, bytes, str]]
SQL = "SELECT rank, name, end_ns - start_ns AS duration_ns FROM device_events WHERE kind = 'memcpy' ORDER BY rank"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reference(tmp_path_factory.mktemp("reference") / "run")


@pytest.fixture
def asked(
    reference: Path, shared_cache: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """Runs the command without a time limit, in this process; gives its status, and what it writes to both streams."""

    def ask(*arguments: object, source: bool = True) -> tuple[object, bytes, str]:
        monkeypatch.delenv("COLUMNS", raising=False)
        words = ["rankscope", "query", *([reference] if source else []), *arguments, "--timeout", "0"]
        monkeypatch.setattr(sys, "argv", [*map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfdbinary.readouterr()
        return left.value.code or 0, out, err.decode()

    return ask


def test_a_table_for_people(asked: Ask) -> None:
    status, out, err = asked(SQL)
    assert status == 0, err
    heading, *rows = out.decode().splitlines()
    assert heading.split() == ["rank", "name", "duration"]
    assert len(rows) == 4
    assert rows[0].split()[-2:] == ["30.5", "µs"]


def test_formats(asked: Ask, tmp_path: Path) -> None:
    expected = [(rank, "Memcpy HtoD (Pinned -> Device)", 30_500) for rank in (0, 0, 1, 1)]
    value = json.loads(asked(SQL, "-f", "json")[1])
    assert [tuple(row.values()) for row in value["rows"]] == expected
    assert value["columns"]["duration_ns"] == {"type": "Int64", "unit": "ns"}
    assert value["query"] == SQL
    assert pl.read_csv(asked(SQL, "-f", "csv")[1]).rows() == expected
    assert pl.read_parquet(io.BytesIO(asked(SQL, "-f", "parquet")[1])).rows() == expected
    assert asked(SQL, "-f", "arrow", "-o", tmp_path / "rows.arrow")[1] == b""
    assert pl.read_ipc(tmp_path / "rows.arrow").rows() == expected


def test_it_says_when_rows_are_missing(asked: Ask) -> None:
    status, out, err = asked(SQL, "-f", "csv", "--limit-rows", "2")
    assert (status, len(out.splitlines())) == (0, 3)
    assert "only the first 2 rows" in err
    assert "only" not in asked(SQL, "--limit-rows", "4")[2]
    assert "only" not in asked(SQL, "--limit-rows", "0")[2]


def test_a_query_from_a_file_and_from_standard_input(
    asked: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copies.sql"
    file.write_text(f"-- copies\n{SQL};\n", encoding="utf-8")
    expected = asked(SQL, "-f", "csv")[1]
    assert asked(file, "-f", "csv")[1] == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(SQL))
    assert asked("-", "-f", "csv")[1] == expected


def test_examples_and_tables(asked: Ask) -> None:
    listed = asked("--examples", source=False)[1].decode()
    assert all(name in listed and example.title in listed for name, example in EXAMPLES.items())
    assert asked("--example", "copies", "-f", "csv")[1].startswith(b"rank,name,copies,total_bytes")
    assert b"result_stragglers" in asked("--tables", source=False)[1]
    assert b"launch_row" in asked("--tables", "device_events", source=False)[1]
    # A run has the same ones.
    assert b"result_stragglers" in asked("--tables")[1]
    assert b"launch_row" in asked("--tables", "device_events")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["DELETE FROM host_ops"], ["only SELECT"]),
        (["SELECT * FROM device_event"], ["device_event", "device_events"]),
        (["SELECT nam FROM device_events"], ["nam", "near names: name"]),
        (["--example", "longest_kernls"], ["longest_kernls", "longest_kernels"]),
        ([], ["name a run and a query"]),
        (["--tables", "flow"], ["flow", "flows"]),
    ],
)
def test_errors_say_what_to_do(asked: Ask, arguments: list[str], words: list[str]) -> None:
    status, out, err = asked(*arguments, source="--tables" not in arguments)
    assert (status, out) == (2, b"")
    assert "Traceback" not in err
    assert all(word in err for word in words)


def test_text_is_untrusted(asked: Ask) -> None:
    out = asked("SELECT 'a\x1b[31m\u202eb' AS name, [1, 2] AS list, 'x' AS \"select\"")[1].decode()
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[1, 2]" in out

"""The magic `%rankscope`: what a line returns, and what it says about a line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analyses.reference import write_reference

import rankscope
from rankscope.errors import RankscopeError
from rankscope.results import Result
from rankscope.show.report import magic


class Shell:
    """What IPython gives to `load_ipython_extension`."""

    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], object] = {}

    def register_magic_function(self, func: object, magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind, magic_name] = func


@pytest.fixture
def called(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(magic, "_runs", {})
    monkeypatch.setattr(magic, "open_run", lambda path: rankscope.open(path, executor="serial"))
    shell = Shell()
    rankscope.load_ipython_extension(shell)
    assert list(shell.magics) == [("line", "rankscope")]
    return shell.magics["line", "rankscope"]


def test_a_run_and_a_table(called: object, tmp_path: Path) -> None:
    assert callable(called)
    folder = write_reference(tmp_path / "my run")
    run = called(f"'{folder}'")
    assert isinstance(run, rankscope.Run)
    assert called(f"'{folder}'") is run
    assert "Step" in (run._repr_html_() or "")
    table = called(f"'{folder}' operators --by shape")
    assert isinstance(table, Result)
    assert table.frame.equals(run.operators(by="shape"))
    assert called(f"'{folder}' --again") is not run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name a run"),
        ("RUN nothing_such", "no analysis"),
        ("RUN kernels by", "not an option"),
        ("RUN operators --by", "needs a value"),
        ("RUN operators --such x", "no option"),
    ],
)
def test_a_line_that_is_wrong(called: object, tmp_path: Path, line: str, message: str) -> None:
    assert callable(called)
    folder = write_reference(tmp_path / "run")
    with pytest.raises(RankscopeError, match=message):
        called(line.replace("RUN", str(folder)))


def test_a_result_is_an_arrow_stream(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    result = run.analyze("kernels")["kernels"]
    nanoarrow = pytest.importorskip("nanoarrow")
    array = nanoarrow.Array(result)
    assert len(array) == result.frame.height > 0
    names = [field.name for field in array.schema.fields]
    assert names == result.frame.columns
    column = array.child(names.index("total_ns"))
    assert list(column.iter_py()) == result.frame["total_ns"].to_list()

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kineto import small_step, trace, write

import rankscope.cli as cli_module
from rankscope.engine.pipeline import open_run


def cache(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["rankscope", "cache", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert not ended.value.code
    return "".join(capfd.readouterr().out.split())


def test_lists_and_clears(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "0traces" in cache(capfd, monkeypatch)
    file = write(tmp_path / "[red]rank0.json", trace(small_step()))
    open_run(file).load()
    listed = cache(capfd, monkeypatch)
    assert "[red]rank0.json" in listed
    assert "1trace," in listed
    assert "1removed" in cache(capfd, monkeypatch, "--clear")
    assert "0traces" in cache(capfd, monkeypatch)
    assert file.exists()


def test_a_relative_path_is_listed_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "night" / "rank0.json", trace(small_step()))
    monkeypatch.chdir(tmp_path)
    for _ in "new", "cached":
        run = open_run("night")
        # The run itself is called as it was asked for.
        assert [info.path for info in run.load().traces] == [str(Path("night") / "rank0.json")]
    assert str(tmp_path / "night" / "rank0.json") in cache(capfd, monkeypatch)

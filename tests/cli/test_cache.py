from __future__ import annotations

from pathlib import Path

import pytest
from tests.kineto import small_step, trace, write

import rankscope.cli as cli_module
from rankscope.pipeline import open_run


def told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["rankscope", "cache", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert not ended.value.code
    return "".join(capfd.readouterr().out.split())


def test_lists_and_clears(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "0traces" in told(capfd, monkeypatch)
    file = write(tmp_path / "[red]rank0.json", trace(small_step()))
    open_run(file).load()
    listed = told(capfd, monkeypatch)
    assert "[red]rank0.json" in listed
    assert "1trace," in listed
    assert "1removed" in told(capfd, monkeypatch, "--clear")
    assert "0traces" in told(capfd, monkeypatch)
    assert file.exists()

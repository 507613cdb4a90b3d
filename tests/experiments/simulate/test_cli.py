"""`rankscope simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rankscope.cli.simulate import simulate
from rankscope.errors import ConfigError


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(simulate)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_everything_that_can_be_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "run"
    output = run(
        *(str(out), "--ranks", "8", "--steps", "2", "--mesh", "dp=2,tp=2,pp=2", "--layers", "1", "--seed", "4"),
        *("--fault", "slow_device:rank=3,magnitude=0.05", "--fault", "data_loading:dp=1,ms=2,steps=11"),
        *("--clock-offset", "3=5s", "--clock-offset", "20us", "--drift", "50", "--drift", "2=-10.5"),
        *("--lose", "2=3", "--lose", "1=0.01:kernel", "--window", "1ms", "--window-start", "4=-2ms"),
        *("--missing", "7", "--truncate", "6=0.5", "--base-time", "per-rank"),
    )
    assert "7 traces" in output
    assert "slow_device (stretch): takes" in output
    assert "jitter kernel_long" in output
    truth = json.loads((out / "truth.json").read_text())
    assert truth["schema"].startswith("rankscope.simulate.truth/")
    ranks = truth["ranks"]
    assert ranks[3]["offset_ns"] == 5_000_000_000
    assert 0 < abs(ranks[0]["offset_ns"]) <= 20_000
    assert ranks[2]["drift_ppb"] == -10_500
    assert ranks[7]["file"] is None
    assert ranks[0]["coordinate"] == {"dp": 0, "tp": 0, "pp": 0}
    assert [f["kind"] for f in truth["faults"]] == ["slow_device", "data_loading"]
    assert all(f["cost_ns"] is not None for f in truth["faults"])
    assert sum(e["rank"] == 2 for e in truth["lost"]) == 3
    assert len(truth["collectives"]) == 8


def test_a_range_of_ranks_is_missing(tmp_path: Path) -> None:
    run(str(tmp_path / "run"), "--ranks", "8", "--steps", "1", "--layers", "1", "--no-costs", "--missing", "0,3-6")
    ranks = json.loads((tmp_path / "run" / "truth.json").read_text())["ranks"]
    assert [number for number, rank in enumerate(ranks) if rank["file"] is None] == [0, 3, 4, 5, 6]


def test_large_runs_keep_the_truth_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.experiments.simulate import truth

    monkeypatch.setattr(truth, "ROWS_IN_ONE_FILE", 1)
    run(str(tmp_path / "run"), "--ranks", "2", "--steps", "1", "--layers", "1", "--no-costs")
    assert json.loads((tmp_path / "run" / "truth.json").read_text())["collectives"] is None
    of_rank = json.loads((tmp_path / "run" / "truth" / "rank1.json").read_text())
    assert set(of_rank["collectives"]["collective"]) == {"all_reduce"}


@pytest.mark.parametrize(
    "option",
    [
        ("--mesh", "dp:2"), ("--fault", "none"), ("--clock-offset", "1=5"), ("--lose", "x"), ("--target-size", "big"),
        ("--window", "1.2.3s"), ("--lose", "3=1.2.3"), ("--target-size", "1.2.3GB"), ("--missing", "3-"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        run(str(tmp_path / "run"), *option)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--clock-offset", "9=5s"), ("--drift", "9=1"), ("--lose", "9=3"), ("--window-start", "9=1ms"),
        ("--window-end", "9=1ms"), ("--missing", "9"), ("--missing", "0,1"), ("--truncate", "9=0.5"),
        ("--truncate", "1=2.0"), ("--lose", "1=1.5"), ("--jitter", "-1"), ("--device-scale", "0"),
        ("--host-scale", "nan"), ("--target-size", "0MB"), ("--fault", "slow_device:rank=1,magnitude=0.1,steps=99"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_is_refused(tmp_path: Path, option: str, value: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError):
        run(str(out), "--ranks", "2", "--steps", "2", option, value)
    assert not out.exists()

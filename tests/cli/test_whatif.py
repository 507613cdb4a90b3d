"""`rankscope whatif`: its table, its options, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import kineto
from tests.analyses.test_whatif import events
from tests.cli.test_cli import called, failed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return kineto.write_ranks(tmp_path / "run", {0: events(0, 6), 1: events(100, 6)})


def test_the_table(run: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    out = called(capfdbinary, monkeypatch, "whatif", run, "--executor", "serial").decode()
    lines = out.split("\n")
    assert lines[0].startswith("The step of 300 µs, of which the replay explains")
    assert "rank 1 like its peers" in out
    assert "--fix rank=1" in out


def test_json_has_the_fidelity_and_options_combine(
    run: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--fix", "rank=1:data_loading", "--network", "2x", "--overlap", "--balance", "ranks", "-f", "json")
    out = called(capfdbinary, monkeypatch, "whatif", run, "--executor", "serial", *options)
    result = json.loads(out)
    assert result["analysis"] == "whatif"
    assert [row["command"].removeprefix("whatif RUN ") for row in result["rows"][1:]] == [
        "--fix rank=1:data_loading", "--network 2x", "--overlap", "--balance ranks",
    ]  # fmt: skip
    assert [row["order"] for row in result["rows"]] == [0, 1, 2, 3, 4]
    assert result["findings"] == []


def test_several_fixes(run: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    fixes = ("--fix", "rank=1:host", "--fix", "rank=1:compute@2", "-f", "json", "--executor", "serial")
    rows = json.loads(called(capfdbinary, monkeypatch, "whatif", run, *fixes))["rows"]
    assert [row["command"] for row in rows[1:]] == [
        "whatif RUN --fix rank=1:host", "whatif RUN --fix rank=1:compute@2",
    ]  # fmt: skip


def test_what_a_finding_says_can_be_asked(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = kineto.write_ranks(tmp_path / "run", {rank: events(100 * (rank == 1), 8) for rank in range(4)})
    text = called(capfdbinary, monkeypatch, "findings", run, "--executor", "serial").decode()
    assert "the step without it: rankscope whatif RUN --fix rank=1" in text
    found = json.loads(called(capfdbinary, monkeypatch, "findings", run, "--executor", "serial", "-f", "json"))
    [straggler] = [each for each in found["findings"] if each["id"] == "straggler"]
    options = " ".join(straggler["scenarios"]).split()
    asked = json.loads(called(capfdbinary, monkeypatch, "whatif", run, *options, "--executor", "serial", "-f", "json"))
    assert asked["rows"][1]["gain_ns"] == straggler["saving_ns"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fix", "rank=7"), "--fix rank=7: rank 7 cannot be replayed"),
        (("--fix", "rank=0-1"), "--fix rank=0,1: ranks 0-1 cannot be compared"),
        (("--fix", "host=1"), "--fix cannot be 'host=1'"),
        (("--network", "fast"), "--network cannot be 'fast'"),
        (("--balance", "hosts"), "--balance cannot be 'hosts'"),
        (("--balance", "stages"), "--balance stages: all recorded ranks run one program"),
    ],
)
def test_errors_name_the_option(
    run: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    message: str,
) -> None:
    assert message in failed(capfdbinary, monkeypatch, "whatif", run, *options, "--executor", "serial")

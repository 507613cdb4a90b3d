"""`rankscope diff` and `rankscope findings`: what they print, and their exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests import kineto
from tests.experiments.compare.test_diff import job

from rankscope.cli import main

Capture = pytest.CaptureFixture[bytes]
Patch = pytest.MonkeyPatch


def called(capture: Capture, patch: Patch, *arguments: object) -> tuple[int, str, str]:
    """Exit status, output, errors."""
    patch.setenv("COLUMNS", "160")
    patch.setattr(sys, "argv", ["rankscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capture.readouterr()
    return int(left.value.code or 0), out.decode(), err.decode()


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150, name="[red]gemm2\x1b[31m")


def test_a_table_for_people(runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch) -> None:
    status, out, _ = called(capfdbinary, monkeypatch, "diff", *runs, "--executor", "serial")
    assert status == 0
    assert "\x1b" not in out
    row = next(line for line in out.splitlines() if "gemm → [red]gemm2" in line)
    assert "101 µs" in row
    assert "151 µs" in row
    assert "+49.5 %" in row
    assert "*" in row


def test_the_first_line_says_what_changed(runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch) -> None:
    _, out, _ = called(capfdbinary, monkeypatch, "diff", *runs, "--executor", "serial")
    # Kernels of 100 µs in steps of 1 ms became kernels of 150 µs: a step is as long as it was, compute is not.
    assert "B's mean step takes 1.00 ms, the same as A's 1.00 ms. Changes: " in " ".join(out.split())
    assert "compute +50.0 µs" in out
    # What neither run has is no difference.
    assert "exposed_memset" not in out


def test_the_head_names_what_was_chosen(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    """Two runs of one directory, and one rank of both: the path alone would name neither."""
    for name, gemm in (("first", 100), ("second", 150)):
        for rank in (0, 1):
            events = [
                event
                for number in range(4)
                for at, ids in ((1e4 * (name == "second") + 1000.0 * number, 10 * number),)
                for event in (
                    kineto.step(number, at, 1000),
                    kineto.launch(at + 15, 5, correlation=ids + 1),
                    kineto.kernel("gemm", at + 20, gemm + number % 2, correlation=ids + 1),
                )
            ]
            content = kineto.trace(events, rank=rank, rankscope={"run_id": f"run-{name}", "rank": rank})
            kineto.write(tmp_path / "runs" / f"{name}-rank{rank}.json", content)
    arguments = ("diff", tmp_path / "runs", tmp_path / "runs", "--run", "run-first", "--run-b", "run-second")
    status, out, err = called(capfdbinary, monkeypatch, *arguments, "--ranks", "1", "--executor", "serial")
    assert status == 0, err
    heads = out.split("\n\n")[0].splitlines()
    heads_read = [" ".join(line.split()) for line in heads]
    assert heads_read[0] == "A runs: run-first"
    assert heads_read[1].startswith("run run-first · rank 1 · steps 0–3")
    assert heads_read[3] == "B runs: run-second"
    assert heads_read[4].startswith("run run-second · rank 1 · steps 0–3")
    verdict = " ".join(out.split())
    # Kernels of 100 and 101 µs against 150 and 151: fifty more than what alternates.
    assert "* marks significant changes" in verdict
    assert "0–1" not in "".join(heads)


def test_json_and_csv(runs: tuple[Path, Path], tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    _, out, _ = called(capfdbinary, monkeypatch, "diff", *runs, "--format", "json", "--executor", "serial")
    content = json.loads(out)
    assert {row["section"] for row in content["rows"]} == {"steps", "savings", "phases", "kernels", "operators"}
    target = tmp_path / "diff.csv"
    called(capfdbinary, monkeypatch, "diff", *runs, "--format", "csv", "-o", target, "--executor", "serial")
    assert target.read_text(encoding="utf-8").startswith("section,name,partner,")


@pytest.mark.parametrize(("condition", "status"), [("compute > 5%", 1), ("compute > 50%", 0), ("nonsense", 2)])
def test_the_exit_status_is_for_ci(
    runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch, condition: str, status: int
) -> None:
    found, _, err = called(capfdbinary, monkeypatch, "diff", *runs, "--fail-on", condition, "--executor", "serial")
    assert found == status
    assert ("fails: compute changed by +50.0 µs (+49.5 %): significant" in err) == (status == 1)


def test_two_ranks_of_one_run(runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch) -> None:
    status, out, _ = called(capfdbinary, monkeypatch, "diff", runs[0], "--ranks", "0,1", "--executor", "serial")
    assert status == 0
    assert "rank 0" in out
    assert "rank 1" in out
    for wrong, said in (
        ("0", "two ranks"),
        ("a,b", "not a list of ranks"),
        ("0,9", "no trace of rank 9"),
        ("1,1", "rank 1 was named twice"),
    ):
        status, _, err = called(capfdbinary, monkeypatch, "diff", runs[0], "--ranks", wrong, "--executor", "serial")
        assert status == 2
        assert said in err


def test_a_rank_named_twice_is_looked_at_once(
    runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch
) -> None:
    heads_read = [
        called(capfdbinary, monkeypatch, "diff", *runs, "--ranks", ranks, "--executor", "serial", "-f", "json")
        for ranks in ("0", "0,0")
    ]
    assert heads_read[0] == heads_read[1]
    assert json.loads(heads_read[0][1])["a"]["ranks"] == [0]


def test_findings_with_evidence(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    events = [
        event
        for number in range(4)
        for at in (1000.0 * number,)
        for event in (kineto.step(number, at, 1000), kineto.loading(at, 300), kineto.kernel("k", at + 310, 680))
    ]
    run = kineto.write_ranks(tmp_path / "run", {0: events})
    status, out, _ = called(capfdbinary, monkeypatch, "findings", run)
    assert status == 0
    assert "The job waits for data for 30 % of a step" in out
    assert "data loading, nothing else running (per step, worst rank): " in out
    status, out, err = called(capfdbinary, monkeypatch, "findings", run, "--format", "json", "--fail-on", "warning")
    assert status == 1
    assert "data_loading" in {finding["id"] for finding in json.loads(out)["findings"]}
    assert "severity warning" in err


def test_nothing_to_find(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    events = [e for n in range(4) for e in (kineto.step(n, 1000.0 * n, 1000), kineto.kernel("k", 1000.0 * n, 1000))]
    run = kineto.write_ranks(tmp_path / "run", {0: events})
    status, out, _ = called(capfdbinary, monkeypatch, "findings", run, "--fail-on", "info")
    assert (status, out.strip()) == (0, "No finding saves 1 % or more of the 1.00 ms step.")

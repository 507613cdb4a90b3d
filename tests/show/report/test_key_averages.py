"""operators in the terminal: torch's own table, and an analysis's own options on the command line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.cli import main
from rankscope.show.report.key_averages import key_averages

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def called(capfd: Capture, monkeypatch: Patch, *arguments: object, status: int = 0) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["rankscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    assert (left.value.code or 0) == status, err
    return out, err


def table(folder: Path, **parameters: str) -> str:
    events = [
        kineto.op("aten::linear", 0, 100, external=1),
        kineto.op("aten::mm", 10, 1.5, external=2, dims=[[500, 1000], [1000, 1000]]),
        kineto.launch(10, 1, correlation=1, external=2),
        kineto.kernel("gemm", 50, 2500, correlation=1, external=2),
        kineto.op("evil\x1b[31m" + "n" * 90, 200, 2_000_000),
    ]
    path = kineto.write(folder / "r.json", kineto.trace(events, rank=0))
    run = rankscope.open(path, executor="serial")
    return key_averages(run.analyze("operators", parameters={"operators": parameters})["operators"])


def test_torchs_headings_units_and_sums(tmp_path: Path) -> None:
    lines = table(tmp_path).splitlines()
    assert lines[1].split("  ")[0].strip() == ""
    headings = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "Self CUDA",
                "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls", "Total GFLOPs")  # fmt: skip
    assert [part.strip() for part in lines[1].split("  ") if part.strip()] == list(headings)
    assert [part for part in lines[3].split() if part] == [
        "aten::mm", "0.00%", "1.500us", "0.00%", "1.500us", "1.500us", "2.500ms", "100.00%", "2.500ms", "2.500ms", "1",
        "1.000",
    ]  # fmt: skip
    # Around `mm`, and nothing that torch counts: its own table has none there.
    (linear,) = (line for line in lines if "aten::linear" in line)
    assert linear.split()[-1] == "--"
    assert lines[-2:] == ["Self CPU time total: 2.000s", "Self CUDA time total: 2.500ms"]
    assert set(lines[0]) == {"-", " "}
    assert "\x1b" not in table(tmp_path)
    assert "Input Shapes" in table(tmp_path, by="shape")
    assert "[[500, 1000], [1000, 1000]]" in table(tmp_path, by="shape")


def test_a_table_for_each_rank(tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    run = write_reference(tmp_path / "run")
    out, _ = called(capfd, monkeypatch, "analyze", "operators", run, "--match", "::mm|linear", "--limit", "1")
    assert [line for line in out.splitlines() if line.startswith("rank")] == ["rank 0", "rank 1"]
    assert out.count("aten::mm") == 2
    assert "aten::linear" not in out
    # 320 µs of all operators, those that were not asked for among them.
    assert out.count("Self CPU time total: 320.000us") == 2


@pytest.mark.parametrize("option", ["--sort", "--sort-by"])
@pytest.mark.parametrize(
    ("by", "heading"),
    [("self_cpu", "Self CPU"), ("cpu", "CPU total"), ("device", "CUDA total"), ("count", "# of Calls")],
)
def test_the_column_that_it_is_sorted_by_comes_first(
    tmp_path: Path, capfd: Capture, monkeypatch: Patch, by: str, heading: str, option: str
) -> None:
    run = write_reference(tmp_path / "run")
    out, _ = called(capfd, monkeypatch, "analyze", "operators", run, option, by)
    assert [part.strip() for part in out.splitlines()[2].split("  ") if part.strip()][:2] == ["Name", heading]


def test_slices_of_two_runs(tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    for name, duration in (("a", 100), ("b", 150)):
        events = [kineto.step(1, 0, 900), kineto.op("aten::mm", 0, duration), kineto.op("aten::mm", 500, duration)]
        events.append(kineto.op(f"only::{name}", 800, 10))
        kineto.write(tmp_path / name / "rank0.json", kineto.trace(events, rank=0, world_size=1))
    both = (tmp_path / "a", "--compare", tmp_path / "b", "-f", "csv")
    out, _ = called(capfd, monkeypatch, "slices", "aten::mm|only", "--regex", *both)
    rows = {row["name"]: row for row in csv.DictReader(out.splitlines())}
    mm = rows["aten::mm"]
    assert (mm["calls_a"], mm["calls_b"], mm["total_a_ns"], mm["total_b_ns"]) == ("2", "2", "200000", "300000")
    assert (mm["median_a_ns"], mm["median_b_ns"], mm["median_change"]) == ("100000.0", "150000.0", "0.5")
    assert (mm["max_a_ns"], mm["max_b_ns"]) == ("100000", "150000")
    assert (rows["only::a"]["calls_b"], rows["only::b"]["calls_a"]) == ("", "")
    shown, _ = called(capfd, monkeypatch, "slices", "aten::mm", tmp_path / "a", "--compare", tmp_path / "b")
    assert "50.0 %" in shown
    _, err = called(capfd, monkeypatch, "slices", "aten::mm", *both, "--by", "event", status=2)
    assert "--by name, rank or step" in err


def test_own_options_before_and_after_the_folder(tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    run = write_reference(tmp_path / "run")
    one, _ = called(capfd, monkeypatch, "analyze", "operators", "--by=shape", run, "--match", "mm", "-f", "csv")
    two, _ = called(capfd, monkeypatch, "analyze", "operators", "-f", "csv", run, "--match=mm", "--by", "shape")
    assert one == two
    assert "[[64,512],[512,512]]" in one
    shown, _ = called(capfd, monkeypatch, "analyses", "operators")
    assert "--by name|shape|stack" in shown


def test_slices_is_a_command(tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    run = write_reference(tmp_path / "run")
    out, _ = called(capfd, monkeypatch, "slices", "aten::MM$", run, "--regex", "--by", "rank", "-f", "csv")
    assert [line.split(",")[:4] for line in out.splitlines()[1:]] == [
        ["0", "", "operator", "aten::mm"], ["1", "", "operator", "aten::mm"],
    ]  # fmt: skip
    other, _ = called(capfd, monkeypatch, "analyze", "slices", run, "--match", "aten::MM$", "--by", "rank", "-f", "csv")
    assert other == out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("operators", "RUN", "--buy", "shape"), "has no option '--buy'"),
        (("operators", "RUN", "--by", "moon"), "by cannot be 'moon'"),
        (("operators", "RUN", "--by"), "needs a value"),
        (("operators", "--by", "shape"), "there is no directory and no trace"),
        (("devices", "RUN", "--by", "name"), "has no option '--by'"),
        (("operators", "RUN", "-x"), "has no option '-x'"),
    ],
)
def test_mistakes(tmp_path: Path, capfd: Capture, monkeypatch: Patch, arguments: tuple[str, ...], says: str) -> None:
    run = str(write_reference(tmp_path / "run"))
    out, err = called(capfd, monkeypatch, "analyze", *(run if a == "RUN" else a for a in arguments), status=2)
    assert out == ""
    assert says in err.replace("\n", " ")

"""Results in terminals of several widths."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console, RenderableType
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.errors import RankscopeError
from rankscope.results import Evidence, Finding
from rankscope.show.report.errors import print_error
from rankscope.show.report.formatting import cell
from rankscope.show.report.terminal import findings_list, result_table


def shown(what: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(what)
    return out.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 200])
@pytest.mark.parametrize("name", ["device_time", "step_time", "kernels", "collectives", "overview"])
def test_no_number_is_cut_at_any_width(tmp_path: Path, width: int, name: str) -> None:
    result = rankscope.open(write_reference(tmp_path), executor="serial").analyze(name)[name]
    text = shown(result_table(result, width=width), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    text, _, silent = text.partition("columns without values: ")
    blocks = [block.rstrip("\n").splitlines() for block in text.split("\n\n")]
    headings = [word for block in blocks for word in block[0].split()]
    nulls = {name for name in result.frame.columns if result.frame[name].null_count() == result.frame.height}
    assert {name.removesuffix("_ns") for name in nulls} == set(silent.replace(",", " ").split())
    called = {column.name: column.name.removesuffix("_ns") for column in result.analysis.columns}
    # Of a step's number and its length one has to be called something else.
    called |= {name: f"{short}_time" for name, short in called.items() if short != name and short in called}
    assert {name for column, name in called.items() if column not in nulls} == set(headings)
    assert all(len(block) == result.frame.height + 1 for block in blocks)
    for column in result.analysis.columns:
        if column.name in nulls:
            continue
        instant = column.instant
        if result.frame.schema[column.name].is_numeric() and not instant:
            assert all(cell(value, column.unit) in text for value in result.frame[column.name])


def test_blocks_repeat_what_tells_rows_apart(tmp_path: Path) -> None:
    result = rankscope.open(write_reference(tmp_path), executor="serial").analyze("step_time")["step_time"]
    blocks = shown(result_table(result, width=60), 60).split("\n\n")
    assert len(blocks) > 1
    assert all(block.split()[:3] == ["rank", "window", "step"] for block in blocks)


def test_instants_can_be_told_apart(tmp_path: Path) -> None:
    events = [kineto.collective(6_322_354_295_054.25, 10.5), kineto.collective(6_322_354_295_080, 10)]
    kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0, world_size=1))
    result = rankscope.open(tmp_path, executor="serial").analyze("collectives")["collectives"]
    assert "6,322,354,295.054 ms" in shown(result_table(result, width=400), 400)


def test_findings_keep_their_indent() -> None:
    finding = Finding(
        "x", "warning", "a title " * 12, evidence=(Evidence("n", 1),), saving_ns=1_500_000, advice="an advice " * 12
    )
    lines = shown(findings_list([finding], [1]), 50).splitlines()
    assert lines[0].startswith("warning a title")
    assert all(line.startswith(" " * 8) for line in lines[1:])
    assert "(saves up to 1.50 ms per step)" in " ".join(line.strip() for line in lines)
    assert "(saves up to 1.50 ms in the recorded span)" in " ".join(shown(findings_list([finding], []), 200).split())


def test_a_frame_shows_in_a_notebook(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    frame = run.device_time()
    assert isinstance(frame, pl.DataFrame)
    assert "<table" in frame._repr_html_()
    assert "<table" in run.analyze("kernels")["kernels"]._repr_html_()
    assert {"device_time", "step_time", "kernels", "collectives"} <= set(dir(run))


def test_lines_of_an_error_stay_lines_and_none_passes_for_ours(capsys):
    print_error(RankscopeError("it ended; its last lines:\nValueError: 7\n  → rm -rf /", path="a\nb", hint="look"))
    assert capsys.readouterr().err.splitlines() == [
        "error: a\N{REPLACEMENT CHARACTER}b: it ended; its last lines:",
        "    ValueError: 7",
        "      → rm -rf /",
        "  → look",
    ]

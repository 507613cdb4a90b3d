"""Every renderer of runs keeps the contract: the run alone is enough, and the run is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analyses.reference import write_reference

import rankscope
from rankscope.show.report.html_report import write_report
from rankscope.show.report.notebook import run_html
from rankscope.show.report.renderer import Renderer
from rankscope.show.report.summary import summary

RENDERERS: dict[str, Renderer[object]] = {"terminal": summary, "notebook": run_html, "file": write_report}


@pytest.mark.parametrize("name", RENDERERS)
def test_the_run_alone_is_enough(tmp_path: Path, name: str) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    before = run.overview()
    assert RENDERERS[name](run)
    assert run.overview().equals(before)

"""Every analysis's whole JSON on the reference run, as it is committed.

`UPDATE_GOLDEN=1 pytest tests/analyses/test_golden.py` writes the files anew; a commit that changes one says why.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.reference import write_reference

import rankscope
import rankscope.analyses
from rankscope.analyses import all_analyses
from rankscope.results import schema_of
from rankscope.show.export.formats import to_json

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = {file.stem for file in Path(rankscope.analyses.__file__).parent.glob("*.py")}
OURS = sorted(name for name, analysis in all_analyses().items() if analysis.page in FILES)


def found(folder: Path, name: str) -> dict[str, Any]:
    run = rankscope.open(write_reference(folder), executor="serial")
    result = run.analyze(name)[name]
    assert result.frame.schema == schema_of(result.analysis.columns), "the declared types are not those of the frame"
    content: dict[str, Any] = json.loads(to_json(result, run.about()))
    content["run"]["path"] = content["run"]["name"] = "RUN"
    return content


def assert_same(got: Any, wanted: Any, where: str) -> None:
    """Equal; floats to the last digits, which may differ between machines."""
    if isinstance(wanted, float) and isinstance(got, float):
        assert math.isclose(got, wanted, rel_tol=1e-12), where
    elif isinstance(wanted, dict) and isinstance(got, dict):
        assert list(got) == list(wanted), where
        for key in wanted:
            assert_same(got[key], wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list) and isinstance(got, list):
        assert len(got) == len(wanted), where
        for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    else:
        assert got == wanted, where


@pytest.mark.parametrize("name", OURS)
def test_golden(tmp_path: Path, name: str) -> None:
    file, content = GOLDEN / f"{name}.json", found(tmp_path, name)
    if os.environ.get("UPDATE_GOLDEN"):
        # A row a line, so that a diff shows which row changed.
        rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in content["rows"])
        text = json.dumps({**content, "rows": []}, indent=1, ensure_ascii=False)
        file.write_text(text.replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n", encoding="utf-8")
    assert file.exists(), f"there is no golden of {name}: UPDATE_GOLDEN=1 writes it; look at it before you commit it"
    assert_same(content, json.loads(file.read_text(encoding="utf-8")), name)


def test_no_golden_without_an_analysis() -> None:
    # That each analysis has one is `test_golden`'s: in random order, this may run before the file is first written.
    assert {file.stem for file in GOLDEN.glob("*.json")} <= set(OURS)

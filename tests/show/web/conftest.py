"""A small run of two ranks, served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kineto import annotation, collective, frame, kernel, launch, memory, op, step, write_ranks
from tests.show.web.asking import Asking, serving


def events(late: float) -> list[dict[str, object]]:
    """Two steps with an operator, its launch, a kernel and a collective each; a rank may be late to the second one."""
    found: list[dict[str, object]] = []
    for number, at in enumerate((0, 1000)):
        behind = late if number else 0
        found += [
            step(10 + number, at, 990),
            op("aten::mm", at + 10, 100, external=10 * number + 1, **{"Input Dims": [[2, 3], [3, 4]]}),
            launch(at + 30, 5, correlation=10 * number + 1, external=10 * number + 1),
            frame("train.py(7): step", at + 5, 900),
            kernel("gemm<4>", at + 100, 50, correlation=10 * number + 1, external=10 * number + 1),
            launch(at + 130, 5, correlation=10 * number + 2),
            collective(at + 200 + behind, 300 - behind, sequence=number, correlation=10 * number + 2),
            annotation("<img src=x onerror=alert(1)>", at + 600, 10),
            memory(at + 15, 1024, allocated=1024 * (number + 1), reserved=8192),
        ]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ranks(tmp_path_factory.mktemp("served") / "run", {0: events(0), 1: events(100)})


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("served-cache")))
        yield serving(folder)

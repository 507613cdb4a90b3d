"""From files to results: ingest every trace, then run the graph of analyses. The only caller of executors.

`open_run` finds the traces of a run (`run.py`); nothing is read until a result is requested. Then each file is one task
(`load.py`), and each rank's share of the analyses another (`graph.py`, `tasks.py`). Only small frames come back, so no
process ever holds all ranks. A failure becomes a finding, and the rest continues.

In: paths or URLs of traces. Out: a `Run`, with results and findings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.engine.pipeline.load import Loaded as Loaded
    from rankscope.engine.pipeline.run import HasRunDir as HasRunDir
    from rankscope.engine.pipeline.run import Run as Run
    from rankscope.engine.pipeline.run import Source as Source
    from rankscope.engine.pipeline.run import open_run as open_run
    from rankscope.engine.pipeline.run import parse_steps as parse_steps
    from rankscope.engine.pipeline.tasks import Progress as Progress

# Imported on first use, so that a worker imports only what its tasks need.
_MODULES = {
    "HasRunDir": "run",
    "Loaded": "load",
    "Progress": "tasks",
    "Run": "run",
    "Source": "run",
    "open_run": "run",
    "parse_steps": "run",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value

"""rankscope: profile a distributed PyTorch job on every rank, and see on one page where the time goes.

 job on N ranks ─ capture ─▶ run directory ─ ingest ─▶ tables ─ analyses ─▶ results ─▶ terminal · report · page · files
                 (torch)      (files only)   (1 task    (Parquet)  (per rank, then   (table + findings)
                                              a rank)               across ranks)

In the job:    ``rankscope.Profiler`` around the training loop, ``.step()`` in it.
After the job: ``rankscope.open("run/")`` gives a run; ``run.device_time()`` a Polars frame,
               ``run.diagnose()`` what to do about it; ``rankscope.diff("before/", "after/")`` says what changed.
From a notebook: ``rankscope.launch("train.py", nproc=2)`` starts a job with a run directory of its own.

The names are loaded when they are first used (PEP 562): capture loads nothing but torch and the standard library, and
the analysis side loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rankscope.capture import Profiler as Profiler
    from rankscope.compare import Diff as Diff
    from rankscope.compare import diff_runs as diff
    from rankscope.errors import RankscopeError as RankscopeError
    from rankscope.jobs.run import launch as launch
    from rankscope.pipeline import Run as Run
    from rankscope.pipeline import open_run as open

__all__ = ["Diff", "Profiler", "RankscopeError", "Run", "__version__", "diff", "launch", "open"]

_WHERE = {
    "Diff": ("rankscope.compare", "Diff"),
    "Profiler": ("rankscope.capture", "Profiler"),
    "RankscopeError": ("rankscope.errors", "RankscopeError"),
    "Run": ("rankscope.pipeline", "Run"),
    "diff": ("rankscope.compare", "diff_runs"),
    "launch": ("rankscope.jobs.run", "launch"),
    "open": ("rankscope.pipeline", "open_run"),
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'rankscope' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _WHERE[name]
    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        how = "pip install torch" if error.name == "torch" else "pip install rankscope, without --no-deps"
        message = f"rankscope.{name} needs {error.name}, which is not installed: {how}"
        raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""rankscope: profile a distributed PyTorch job on every rank, and see on one page where the time goes.

 job on N ranks ─ capture ─▶ run directory ─ ingest ─▶ tables ─ analyses ─▶ results ─▶ terminal · report · page · files
                 (torch)      (files only)   (1 task    (Parquet)  (per rank, then   (table + findings)
                                              a rank)               across ranks)

In the job:    ``rankscope.Profiler`` around the training loop, ``.step()`` in it.
After the job: ``rankscope.open("run/")`` gives a run; ``run.device_time()`` a Polars frame,
               ``run.diagnose()`` what to do about it; ``rankscope.diff("before/", "after/")`` says what changed.
From a notebook: ``rankscope.launch("train.py", nproc=2)`` starts a job with its own run directory.
For plugins:   ``Analysis``, ``Rule`` and the types that they use; docs/plugins.md has an example of each.

The names are loaded when they are first used (PEP 562): capture loads nothing but torch and the standard library, and
the analysis side loads no torch.
"""

from __future__ import annotations

__version__ = "0.2.0"

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes long, and Ctrl-C meanwhile would print a traceback
    from rankscope.capture import HangWatch as HangWatch
    from rankscope.capture import Profiler as Profiler
    from rankscope.engine.pipeline import Run as Run
    from rankscope.engine.pipeline import open_run as open
    from rankscope.errors import RankscopeError as RankscopeError
    from rankscope.experiments.compare import Diff as Diff
    from rankscope.experiments.compare import diff_runs as diff
    from rankscope.jobs.run import launch as launch
    from rankscope.results import Analysis as Analysis
    from rankscope.results import Bars as Bars
    from rankscope.results import Column as Column
    from rankscope.results import Evidence as Evidence
    from rankscope.results import Finding as Finding
    from rankscope.results import Headline as Headline
    from rankscope.results import Inputs as Inputs
    from rankscope.results import Parameter as Parameter
    from rankscope.results import Result as Result
    from rankscope.results import Rule as Rule

__all__ = [
    "Analysis",
    "Bars",
    "Column",
    "Diff",
    "Evidence",
    "Finding",
    "HangWatch",
    "Headline",
    "Inputs",
    "Parameter",
    "Profiler",
    "RankscopeError",
    "Result",
    "Rule",
    "Run",
    "__version__",
    "diff",
    "launch",
    "open",
]

# The others are in `rankscope.results`.
_WHERE = {
    "Diff": ("rankscope.experiments.compare", "Diff"),
    "HangWatch": ("rankscope.capture", "HangWatch"),
    "Profiler": ("rankscope.capture", "Profiler"),
    "RankscopeError": ("rankscope.errors", "RankscopeError"),
    "Run": ("rankscope.engine.pipeline", "Run"),
    "diff": ("rankscope.experiments.compare", "diff_runs"),
    "launch": ("rankscope.jobs.run", "launch"),
    "open": ("rankscope.engine.pipeline", "open_run"),
}


def _load(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rankscope' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _WHERE.get(name, ("rankscope.results", name))
    try:
        value = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        how = "pip install torch" if error.name == "torch" else "pip install rankscope, without --no-deps"
        message = f"rankscope.{name} needs {error.name}, which is not installed: {how}"
        raise ModuleNotFoundError(message, name=error.name) from error
    if name in ("Run", "open"):
        _show_runs_in_notebooks()
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # A type checker would take it to mean that any name exists.
    __getattr__ = _load


def _show_runs_in_notebooks() -> None:
    """Give runs their overview: the pipeline cannot import the report, which is a layer above it."""
    from rankscope.engine.pipeline import Run

    def to_html(run: Run) -> str:
        from rankscope.show.report.notebook import run_html

        return run_html(run)

    Run.to_html = to_html


_FORMER = {
    "rankscope.doctor": "rankscope.jobs.doctor",
    "rankscope.hang": "rankscope.answers.hang",
    "rankscope.measure": "rankscope.experiments.measure",
    "rankscope.measure.injob": "rankscope.capture.measured",
    "rankscope.workloads": "rankscope.capture.workloads",
}
"""Documented modules that scripts and job scripts import and run by the name they had up to 0.2."""


class _FormerNames:
    """Gives those modules under their former names; asked last, for modules that nobody else finds."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
        """The spec of a module under its former name."""
        former = max((old for old in _FORMER if f"{name}.".startswith(f"{old}.")), key=len, default=None)
        if former is None:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        now = find_spec(_FORMER[former] + name[len(former) :])
        if now is None:
            return None
        is_package = now.submodule_search_locations is not None
        # A package without folders: its modules come from here as well, and are not loaded a second time.
        return ModuleSpec(name, cls, origin=now.origin, loader_state=now, is_package=is_package)  # type: ignore[arg-type]  # a loader by its methods

    @staticmethod
    def create_module(spec: object) -> None:
        """The usual kind of module."""

    @staticmethod
    def exec_module(module: object) -> None:
        """Look every name up in the module itself."""
        from functools import partial
        from importlib import import_module

        now = import_module(module.__spec__.loader_state.name)  # type: ignore[attr-defined]  # a module has a spec
        vars(module)["__getattr__"] = partial(getattr, now)

    @classmethod
    def get_code(cls, name: str) -> object:
        """For `python -m` with the former name."""
        now = cls.find_spec(name).loader_state  # type: ignore[attr-defined]  # of the modules above
        return now.loader.get_code(now.name)


def _add_former_names() -> None:
    import sys

    sys.meta_path.append(_FormerNames)  # type: ignore[arg-type]  # a finder by its method


_add_former_names()


def load_ipython_extension(shell: object) -> None:
    """What `%load_ext rankscope` calls: adds the magic `%rankscope`."""
    from rankscope.show.report.magic import register

    register(shell)  # type: ignore[arg-type]  # IPython's shell; its types are not installed everywhere


def __dir__() -> list[str]:
    return sorted(__all__)

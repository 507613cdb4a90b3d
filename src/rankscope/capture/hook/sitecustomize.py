"""Profiles a job whose script does not use rankscope: `rankscope run` and `rankscope exec` put this file's folder on
PYTHONPATH, and Python runs it at startup.

A process that never loads torch pays next to nothing: all that stays is an import finder that waits for
``torch.optim``. A sitecustomize that existed before runs as it would have.

The image of a job may have an older Python or torch than capture supports: the job runs as without rankscope then, with
one warning. This file, and what it loads before it knows, is therefore written for Python 3.8
(tests/capture/test_old_images.py).

In: the variables that `rankscope run`, `exec` and `measure` set. Out: an installed profiler or experiment, once torch
is loaded.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of this file
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib is slow to load
_OPTIMIZER, _PROFILER = "torch.optim.optimizer", "torch.profiler.profiler"
_awaited = [_OPTIMIZER, _PROFILER]
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# The first letters of other launchers' variables, and how each starts two ranks.
_LAUNCHERS = {
    "SLURM_": "srun --ntasks=2",
    "PALS_": "mpiexec -n 2",
    "OMPI_": "mpiexec -n 2",
    "PMI": "mpiexec -n 2",
    "MPI_LOCAL": "mpiexec -n 2",
    "MV2_": "mpiexec -n 2",
    "MVP_": "mpiexec -n 2",
    "FLUX_": "flux run -n 2",
}
_WARNED = "RANKSCOPE_UNSUPPORTED_WARNED"


class _Finder:
    """Finds ``torch.optim.optimizer`` and ``torch.profiler.profiler`` with the other finders, and installs rankscope
    once the first is loaded."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Find those; nothing else."""
        if name not in _awaited:
            return None
        _awaited.remove(name)
        if not _awaited:
            sys.meta_path.remove(cls)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not cls else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _after_loading(spec.loader, _install if name == _OPTIMIZER else _watch_profilers)
                return spec
        return None


def _after_loading(loader: Any, action: Any) -> None:
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: Any) -> None:
        del loader.exec_module
        run(module)
        try:
            action(module)
        except Exception as error:
            print(f"rankscope: this job is not profiled: {type(error).__name__}: {error}", file=sys.stderr)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass


def _install(module: Any) -> None:
    versions = _versions()
    torch_version = getattr(sys.modules.get("torch"), "__version__", "?")
    oldest_python, oldest_torch = versions["OLDEST_PYTHON"], versions["OLDEST_TORCH"]
    if sys.version_info < oldest_python or not versions["is_supported_torch"](torch_version):
        _warn_once(
            "rankscope: this job runs without rankscope: it has Python {}.{} and torch {}, and capture needs Python "
            "{}.{} and torch {}.{}, or newer".format(
                *sys.version_info[:2], torch_version, *oldest_python, *oldest_torch
            )
        )
    elif os.environ.get("RANKSCOPE_EXPERIMENT"):
        from rankscope.capture.measured import install as install_experiment

        install_experiment(module)
    else:
        from rankscope.capture.auto_profiler import install

        install(module)


def _watch_profilers(module: Any) -> None:
    # If torch loads it before the optimizers, `install` finds it loaded.
    script_profilers = sys.modules.get("rankscope.capture.script_profilers.interception")
    if script_profilers is not None:
        script_profilers.watch(module)


def _versions() -> Any:
    """The names in ``rundir/versions.py``; by path, because this Python may find another rankscope, or none."""
    import runpy

    return runpy.run_path(os.path.join(_HERE, "..", "..", "rundir", "versions.py"))  # noqa: PTH118  # slow to load


def _warn_once(text: str) -> None:
    """Warn in the first process of the first rank alone: its children inherit that it was done."""
    if os.environ.get(_WARNED):
        return
    os.environ[_WARNED] = "1"
    try:
        from rankscope.rundir.launcher import identify

        if identify(os.environ).rank:
            return
    except Exception:
        pass  # better a warning from each rank than none
    print(text, file=sys.stderr)


def _run_previous_sitecustomize() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100  # slow to load
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _explain_missing_launcher() -> None:
    """At the exit of a script that wanted a launcher's variables, and had none, say how to launch it."""
    error = getattr(sys, "last_value", None)
    text = str(error) if isinstance(error, (KeyError, ValueError)) else ""
    script = os.path.basename(sys.argv[0] or "train.py")  # noqa: PTH119  # slow to load
    for name in text.replace("'", " ").split():
        how = _launch(name, script) if name not in os.environ else None
        if how is not None:
            print(f"rankscope: the script expects {name}, which a launcher sets: {how}", file=sys.stderr)
            return


def _launch(variable: str, script: str) -> str | None:
    """How a script is launched that expects a launcher's variable; None for a variable that no launcher sets."""
    if variable in _TORCHRUN:
        return f"rankscope run --nproc-per-node 2 {script}, or exec under one (torchrun, srun, mpiexec)"
    starts = [start for letters, start in _LAUNCHERS.items() if variable.startswith(letters)]
    return f"{starts[0]} rankscope exec python {script}" if starts else None


def _bind() -> None:
    """Bind this rank to CPUs, for an experiment, before any thread starts and any library counts the CPUs."""
    try:
        from rankscope.rundir.cpus import bind_as_planned

        bind_as_planned(os.environ)
    except Exception as error:
        print(f"rankscope: this process is not bound to CPUs: {type(error).__name__}: {error}", file=sys.stderr)


if os.environ.get("RANKSCOPE_HOOK"):
    if "RANK" not in os.environ:
        import atexit

        atexit.register(_explain_missing_launcher)
    sys.meta_path.insert(0, _Finder)
    if os.environ.get("RANKSCOPE_EXPERIMENT") and sys.version_info >= _versions()["OLDEST_PYTHON"]:
        _bind()
_run_previous_sitecustomize()

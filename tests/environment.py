"""The environment that the tests run in: what is removed from the machine's, and what every test gets in its place."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import MutableMapping
from pathlib import Path

ROOT = "RANKSCOPE_TESTS_ROOT"
"""Names the session's directory in the environment, so that the workers of pytest-xdist share it."""

_KEPT = {ROOT, "RANKSCOPE_CHROMIUM"}

_LAUNCHER = re.compile(
    r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|NODE)_(RANK|WORLD_SIZE|NAME)|MASTER_\w+)$"
    r"|(RANKSCOPE|TORCHELASTIC|TORCHRUN|SLURM|SBATCH|SRUN|PMIX?|PALS|PBS|OMPI|PRTE|HYDI?|MV2|MVP|MPI|MPICH|FLUX|LSB|LSF|JSM)_"
)
_SETTINGS = re.compile(
    r"(TORCH|TORCHINDUCTOR|NCCL|GLOO|KINETO|OMP|MKL|POLARS|RICH|TYPER|CLICOLOR)_"
    r"|(XDG_\w+|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|CUDA_VISIBLE_DEVICES|TF_CPP_MIN_LOG_LEVEL"
    r"|PYTHONWARNINGS|PYTHONDONTWRITEBYTECODE|PYTHONOPTIMIZE|PYTHONHASHSEED|GIT_(DIR|WORK_TREE|INDEX_FILE))$"
)


def without_launcher(environ: MutableMapping[str, str]) -> dict[str, str]:
    """A copy without what a launcher, a scheduler or another test may have set, rankscope's own options included."""
    return {name: value for name, value in environ.items() if not _LAUNCHER.match(name)}


def enter_session() -> Path:
    """Replace this process's environment by a reproducible one; returns the session's directory.

    Its path is short, because sockets are made under ``TMPDIR`` and their paths may have 107 characters at most.
    """
    _heed_signals()
    root = Path(os.environ.get(ROOT) or tempfile.mkdtemp(prefix="rs-"))
    # pytest keeps its own directories of the last runs where it always does.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    for name in list(os.environ):
        if name not in _KEPT and (_LAUNCHER.match(name) or _SETTINGS.match(name)):
            del os.environ[name]
    root.chmod(0o711)  # tests that run as another user pass through
    os.umask(0o022)
    os.environ[ROOT] = str(root)
    os.environ |= _places(root)
    # What is compiled once serves the entire session.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "inductor")
    os.environ["MPLCONFIGDIR"] = str(root / "matplotlib")
    tempfile.tempdir = None
    return root


def _heed_signals() -> None:
    """Undo what ``nohup`` and a shell's ``&`` pass on to all child processes: signals that are ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM, *(getattr(signal, name, None) for name in ("SIGHUP", "SIGQUIT"))):
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def leave_session(root: Path) -> None:
    """Remove the session's directory."""
    shutil.rmtree(root, ignore_errors=True)


def enter_test(root: Path) -> dict[str, str]:
    """The variables of one test: a home, a cache and a temporary directory that nothing else uses."""
    variables = _places(Path(tempfile.mkdtemp(prefix="", dir=root)))
    return variables | {"NO_COLOR": "1", "COLUMNS": "80", "LINES": "24", "KINETO_LOG_LEVEL": "6"}


def _places(folder: Path) -> dict[str, str]:
    folder.chmod(0o711)
    for name, mode in (("h", 0o755), ("c", 0o700), ("t", 0o1777)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(mode)
    return {
        "HOME": str(folder / "h"),
        "XDG_CACHE_HOME": str(folder / "h" / ".cache"),
        "RANKSCOPE_CACHE": str(folder / "c"),
        "TMPDIR": str(folder / "t"),
    }

"""A training step as a function, for ``rankscope measure``: ``python -m rankscope.capture.workloads.function
FILE.py:NAME``.

Loading the file sets up the model, the optimizer and the process group; then the function is called, without arguments,
until the measurement is done. Arguments after the name belong to the file: it sees ``sys.argv`` as if it were the
script.

In: a file and a function's name. Out: calls of it until the plan is complete.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from rankscope.capture.measured import measure
from rankscope.errors import ConfigError

NAME = "__rankscope__"
"""The ``__name__`` of the file while it is loaded, so that its ``if __name__ == "__main__"`` does not run."""


def load(target: str) -> Callable[[], object]:
    """The function that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises:
        ConfigError: there is no such file or module, or no such function in it.
    """
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier():
        raise ConfigError(
            f"{target!r} is not the name of a function", hint="write train.py:train_step or package.module:train_step"
        )
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise ConfigError("no such script", path=where)
        sys.path.insert(0, str(Path(where).resolve().parent))
        function = runpy.run_path(where, run_name=NAME).get(name)
    else:
        sys.path.insert(0, "")
        function = getattr(importlib.import_module(where), name, None)
    if not callable(function):
        raise ConfigError(f"there is no function {name!r}", path=where)
    step: Callable[[], object] = function
    return step


def main() -> None:
    """Load the function, and call it until the measurement is done."""
    if len(sys.argv) < 2:
        sys.exit("python -m rankscope.capture.workloads.function FILE.py:train_step [arguments]")
    target = sys.argv.pop(1)
    try:
        step = load(target)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    if not measure(step):
        sys.exit("error: no measurement is running: start this with `rankscope measure`")
    # A wrapped model that outlives its process group may abort the interpreter's exit (docs/capture.md).
    del step
    gc.collect()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

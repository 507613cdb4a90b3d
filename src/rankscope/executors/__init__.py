"""Where tasks run: each file here makes one kind of `concurrent.futures.Executor`."""

from __future__ import annotations

import pkgutil
from concurrent.futures import Executor
from importlib import import_module

from rankscope.errors import ConfigError


def executor_names() -> list[str]:
    """The kinds that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def make_executor(kind: str, workers: int | None = None) -> Executor:
    """An executor of a kind; a context manager that ends its workers.

    Args:
        kind: `serial`, `processes`, …: the name of a file here.
        workers: how many tasks run at once; None for as many as there are cores.

    Raises:
        ConfigError: there is no such kind.
    """
    if kind not in executor_names():
        raise ConfigError(f"there is no executor {kind!r}", hint=f"there are: {', '.join(executor_names())}")
    executor: Executor = import_module(f"{__name__}.{kind}").make(workers)
    return executor

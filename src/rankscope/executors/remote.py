"""Settings and version checks of executors on other machines.

In: a task and the settings of this process. Out: the task's result, computed under these settings.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import rankscope
from rankscope.store.cache import cache_root

T = TypeVar("T")

_PACKAGES = ("polars", "numpy", "msgspec")


def settings() -> dict[str, str]:
    """Environment variables that a task needs on a worker: where tables are kept."""
    return {"RANKSCOPE_CACHE": str(cache_root().absolute())}


def run_remotely(environment: Mapping[str, str], task: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a task on a worker, under the settings of the process that sent it."""
    os.environ.update(environment)
    return task(*args, **kwargs)


def versions() -> dict[str, str]:
    """The versions that results depend on, in this process."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "rankscope": rankscope.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def version_differences(theirs: Mapping[str, str]) -> list[str]:
    """Differences of a worker's versions from those of this process: ``polars 1.33.1 (here 2.1.0)``."""
    return [
        f"{name} {theirs.get(name, 'unknown')} (here {ours})"
        for name, ours in versions().items()
        if theirs.get(name) != ours
    ]

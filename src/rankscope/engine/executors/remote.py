"""What executors on clusters share: tasks that run under this process's settings, and a check of versions.

In: another package's executor, and tasks. Out: an executor that stays connected until the program ends.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import rankscope
from rankscope.store.cache import cache_root
from rankscope.store.shared_cache import shared_url

T = TypeVar("T")

_PACKAGES = ("polars", "numpy", "msgspec")


class RemoteExecutor(Executor):
    """Tasks on workers that stay connected until the program ends.

    Args:
        executor: hands tasks to the workers.
        workers: gives how many tasks can run at once.
    """

    def __init__(self, executor: Executor, workers: Callable[[], int]) -> None:
        self._executor, self._workers = executor, workers
        self._tasks: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand the task to a worker, with this process's settings."""
        future = self._executor.submit(run_remotely, settings(), fn, *args, **kwargs)
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)
        return future

    @property
    def _max_workers(self) -> int:
        """How many tasks can run at once, as the standard library's executors name it."""
        return self._workers()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel tasks if asked to; the workers stay connected for the next ones."""
        if cancel_futures:
            self.stop()

    def stop(self) -> None:
        """Cancel all tasks."""
        for future in list(self._tasks):
            future.cancel()


def settings() -> dict[str, str]:
    """Environment variables that a task needs on a worker: where tables are kept."""
    return {"RANKSCOPE_CACHE": shared_url() or str(cache_root().absolute())}


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

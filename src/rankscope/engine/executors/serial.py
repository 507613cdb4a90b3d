"""Run tasks one after another in this process: for debugging, and if there is little to do.

In: tasks. Out: an executor whose futures are done when they are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from rankscope.results.failures import FAILURES

T = TypeVar("T")


class SerialExecutor(Executor):
    """Runs a task when it is submitted."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the task; the future is done when this returns."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except FAILURES as error:
            future.set_exception(error)
        return future


def make(workers: int | None) -> Executor:
    """One worker: this process."""
    return SerialExecutor()

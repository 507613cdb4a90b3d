"""Run tasks: each module here with a function ``make`` makes one kind of `concurrent.futures.Executor`.

A kind is the name of its module, and may have an address: ``processes``, ``dask:tcp://HOST:8786``.

In: a module-level function and the arguments of each task. Out: outcomes in order, errors among them (`run_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from rankscope.errors import ConfigError, RankscopeError

T = TypeVar("T")

Outcomes = dict[int, "T | BaseException"]


class WorkerDiedError(RankscopeError):
    """The worker died while it ran the task."""


KINDS = ("processes", "serial", "dask", "mpi")
_WITH_ADDRESS = ("dask",)


def check_kind(kind: str) -> None:
    """Check the name of an executor early: the executor itself may be made much later, or never.

    Under MPI the job's processes divide here: only process 0 returns.

    Raises:
        ConfigError: there is no such kind, or it cannot be used here.
    """
    name, _, address = kind.partition(":")
    if name not in KINDS or (address and name not in _WITH_ADDRESS):
        raise ConfigError(
            f"there is no executor {kind!r}", hint=f"there are: {', '.join(KINDS)}; dask takes an address, dask:ADDRESS"
        )
    if name == "mpi":
        import_module(f"{__name__}.mpi").join()


def make_executor(kind: str, workers: int | None = None) -> Executor:
    """An executor of the given kind; as a context manager it ends its workers.

    Args:
        kind: one of `KINDS`, with its address.
        workers: how many tasks run at once; None for as many as there are cores, or workers in a cluster.

    Raises:
        ConfigError: there is no such kind, or it cannot be used here.
    """
    check_kind(kind)
    name, _, address = kind.partition(":")
    make = import_module(f"{__name__}.{name}").make
    executor: Executor = make(workers, address) if name in _WITH_ADDRESS else make(workers)
    return executor


@dataclass
class Pool:
    """Workers that are kept between calls of `run_tasks`: each new one has to import everything again.

    Attributes:
        kind: which executor, as for `make_executor`.
        workers: how many tasks run at once.
    """

    kind: str
    workers: int | None
    _executor: Executor | None = None

    def executor(self) -> Executor:
        """The executor, made at its first use and again after a worker has died."""
        if self._executor is None:
            self._executor = make_executor(self.kind, self.workers)
        return self._executor

    def drop(self) -> None:
        """Forget workers that are broken or have been stopped."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End the workers."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def run_tasks(
    kind: str,
    workers: int | None,
    task: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    on_progress: Callable[[T | BaseException], None] = lambda outcome: None,
    pool: Pool | None = None,
) -> list[T | BaseException]:
    """Run a task for each tuple of arguments; outcomes in their order, errors among them.

    A worker that dies breaks the entire pool, and the pool does not report which task it had. So the tasks that may
    have been running are tried once more, each alone, and the rest continue in a new pool: only a task that kills its
    worker again is lost.

    Args:
        kind: which executor, as for `make_executor`.
        on_progress: called with each outcome as it arrives.
        pool: workers of this kind to use and keep; None for new ones that end with the tasks.
    """
    outcomes: Outcomes[T] = {}
    waiting = list(range(len(arguments)))
    while waiting:
        at_once = _run(
            pool or Pool(kind, workers), task, arguments, waiting, outcomes, on_progress, keep=pool is not None
        )
        unfinished = [index for index in waiting if index not in outcomes]
        # Tasks start in the order of submission, so those that ran are the first of the unfinished ones.
        for index in unfinished[:at_once]:
            _run(Pool(kind, 1), task, arguments, [index], outcomes, on_progress)
            if index not in outcomes:
                outcomes[index] = WorkerDiedError(
                    "the process that worked on it died",
                    hint="it may have been killed for its memory: use fewer --workers, or a machine with more",
                )
                on_progress(outcomes[index])
        waiting = unfinished[at_once:]
    return [outcomes[index] for index in range(len(arguments))]


def _run(
    pool: Pool,
    task: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    chosen: Sequence[int],
    outcomes: Outcomes[T],
    on_progress: Callable[[T | BaseException], None],
    *,
    keep: bool = False,
) -> int:
    """Run some of the tasks until they are done or a worker dies; returns how many can have run at once."""
    executor = pool.executor()
    futures: dict[Future[T], int] = {}
    try:
        for index in chosen:
            future = executor.submit(task, *arguments[index])
            if future.done():  # a serial executor runs it at once
                _keep(future, index, outcomes, on_progress)
            else:
                futures[future] = index
        for future in as_completed(futures):
            _keep(future, futures[future], outcomes, on_progress)
    except BrokenExecutor:
        # Tasks that finished before are good; the pool has marked all others as broken.
        for future, index in futures.items():
            if future.done() and index not in outcomes:
                _keep(future, index, outcomes, on_progress)
    except BaseException:
        # Ctrl-C: drop waiting tasks, and end running ones if the executor can.
        getattr(executor, "stop", lambda: executor.shutdown(wait=False, cancel_futures=True))()
        executor.shutdown()
        pool.drop()
        raise
    if not keep:
        pool.close()
    elif any(index not in outcomes for index in chosen):
        pool.drop()
    return int(getattr(executor, "_max_workers", 1))


def _keep(
    future: Future[T], index: int, outcomes: Outcomes[T], on_progress: Callable[[T | BaseException], None]
) -> None:
    try:
        error = future.exception()
    except CancelledError:
        error = WorkerDiedError(
            "the cluster gave up the task", hint="its scheduler or its workers may have been lost: see their logs"
        )
    if isinstance(error, BrokenExecutor):
        return
    outcomes[index] = future.result() if error is None else error
    on_progress(outcomes[index])

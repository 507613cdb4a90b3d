"""Run tasks: each module here with a function ``make`` makes one kind of `concurrent.futures.Executor`.

A kind is the name of its module, and may have an address: ``processes``, ``dask:tcp://HOST:8786``.

In: a module-level function and the arguments of each task. Out: outcomes in order, errors among them (`run_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, TypeVar, overload

from rankscope.errors import ConfigError, RankscopeError

T = TypeVar("T")

Outcomes = dict[int, "T | BaseException"]
OnOutcome = Callable[[int, "T | BaseException"], None]


class WorkerDiedError(RankscopeError):
    """The worker died while it ran the task."""


KINDS = ("processes", "serial", "dask", "mpi")
_WITH_ADDRESS = ("dask",)
_AHEAD_PER_WORKER = 4
"""Tasks that are submitted ahead for each worker: enough for it to have the next one when it ends one."""
_LEAST_AHEAD = 16


class Lazy(Sequence[T]):
    """A sequence whose items are made when they are asked for, and not kept: arguments of very many tasks.

    Args:
        size: the number of items.
        make: gives the item of an index.
    """

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        indices = range(self._size)[index]
        return self._make(indices) if isinstance(indices, int) else [self._make(each) for each in indices]


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

    The parameters are those of `run_each`, whose outcomes are not kept.
    """
    return in_order(lambda keep: run_each(kind, workers, task, arguments, keep, pool), len(arguments), on_progress)


def in_order(
    run: Callable[[OnOutcome[T]], None], count: int, on_outcome: Callable[[T | BaseException], None]
) -> list[T | BaseException]:
    """The outcomes of tasks in their order, each also handed over as it arrives.

    Args:
        run: runs the tasks, and calls what it is given with the index and the outcome of each.
        count: the number of tasks.
        on_outcome: called with each outcome as it arrives.
    """
    outcomes: Outcomes[T] = {}

    def keep(index: int, outcome: T | BaseException) -> None:
        outcomes[index] = outcome
        on_outcome(outcome)

    run(keep)
    return [outcomes[index] for index in range(count)]


def run_each(
    kind: str,
    workers: int | None,
    task: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    on_outcome: OnOutcome[T],
    pool: Pool | None = None,
) -> None:
    """Run a task for each tuple of arguments, and hand over each outcome, which may be an error, as it arrives.

    A worker that dies breaks the entire pool, and the pool does not report which task it had. So the tasks that may
    have been running are tried once more, each alone, and the rest continue in a new pool: only a task that kills its
    worker again is lost.

    Args:
        kind: which executor, as for `make_executor`.
        on_outcome: called with the index of a task and its outcome.
        pool: workers of this kind to use and keep; None for new ones that end with the tasks.
    """
    done: set[int] = set()

    def arrived(index: int, outcome: T | BaseException) -> None:
        done.add(index)
        on_outcome(index, outcome)

    waiting = list(range(len(arguments)))
    while waiting:
        at_once = _run(pool or Pool(kind, workers), task, arguments, waiting, arrived, keep=pool is not None)
        unfinished = [index for index in waiting if index not in done]
        # Tasks start in the order of submission, so those that ran are the first of the unfinished ones.
        for index in unfinished[:at_once]:
            _run(Pool(kind, 1), task, arguments, [index], arrived)
            if index not in done:
                died = WorkerDiedError(
                    "the process that worked on it died",
                    hint="it may have been killed for its memory: use fewer --workers, or a machine with more",
                )
                arrived(index, died)
        waiting = unfinished[at_once:]


def _run(
    pool: Pool,
    task: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    chosen: Sequence[int],
    on_outcome: OnOutcome[T],
    *,
    keep: bool = False,
) -> int:
    """Run some of the tasks until they are done or a worker dies; returns how many can have run at once.

    Only a few tasks per worker are submitted ahead: arguments of all at once would take memory in proportion to ranks.
    """
    executor = pool.executor()
    at_once = int(getattr(executor, "_max_workers", 1))
    futures: dict[int, Future[T]] = {}
    finished: SimpleQueue[int] = SimpleQueue()
    left = set(chosen)

    def arrived(index: int) -> None:
        # A future keeps its result: without it, only `on_outcome` decides how long that stays in memory.
        outcome: T | BaseException = _outcome(futures.pop(index))
        if not isinstance(outcome, BrokenExecutor):
            left.discard(index)
            on_outcome(index, outcome)

    def submit(index: int) -> None:
        futures[index] = future = executor.submit(task, *arguments[index])
        if future.done():  # a serial executor runs it at once
            arrived(index)
        else:
            future.add_done_callback(partial(_note, finished, index))

    try:
        for index in chosen:
            submit(index)
            if len(futures) >= max(_AHEAD_PER_WORKER * at_once, _LEAST_AHEAD):
                arrived(finished.get())
        while futures:
            arrived(finished.get())
    except BrokenExecutor:
        # Tasks that finished before are good; the pool has marked all others as broken.
        for index in [index for index, future in futures.items() if future.done()]:
            arrived(index)
    except BaseException:
        # Ctrl-C: drop waiting tasks, and end running ones if the executor can.
        getattr(executor, "stop", lambda: executor.shutdown(wait=False, cancel_futures=True))()
        executor.shutdown()
        pool.drop()
        raise
    if not keep:
        pool.close()
    elif left:
        pool.drop()
    return at_once


def _note(finished: SimpleQueue[int], index: int, _: Future[T]) -> None:
    finished.put(index)


def _outcome(future: Future[T]) -> T | BaseException:
    if future.cancelled():
        return WorkerDiedError(
            "the cluster gave up the task", hint="its scheduler or its workers may have been lost: see their logs"
        )
    error = future.exception()
    return future.result() if error is None else error

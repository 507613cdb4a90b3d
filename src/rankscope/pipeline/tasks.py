"""What a worker does for a rank, and how tasks are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import polars as pl

from rankscope.analyses import get_analysis
from rankscope.errors import AnalysisError, RankscopeError, describe_error
from rankscope.executors import Pool, run_tasks
from rankscope.ingest.task import ingest_trace
from rankscope.results import Inputs, Options, Parameters, Part, Value
from rankscope.store.cache import CachedTrace, DamagedTablesError
from rankscope.store.column_cache import Columns

T = TypeVar("T")

Asked = tuple[str, tuple[tuple[str, Value], ...]]
"""An analysis's name, and a value for each of its own parameters: what a result is known by."""

# Below this much to read, starting workers takes longer than the reading.
SMALL_BYTES = 2 << 20

Progress = Callable[[str, int, int, int], None]
"""Told after each task: what is being done, tasks done, tasks in all, bytes of JSON read so far."""


def asked(name: str, given: Parameters | None = None) -> Asked:
    """An analysis with its parameters: as given, else their defaults.

    Raises:
        AnalysisError: there is none of that name.
        ConfigError: it has no such parameter, or that cannot have such a value.
    """
    analysis = get_analysis(name)
    return analysis.name, tuple(analysis.choose(given).items())


@dataclass
class Tasks:
    """Runs tasks on one kind of executor, and tells how far they are.

    Attributes:
        executor: the kind: ``processes``, ``serial``, …
        workers: how many at once; None for as many as there are cores, and none at all for a little work.
        progress: called after each task.
        columns: what tasks in this process read, kept for those that come.
    """

    executor: str = "processes"
    workers: int | None = None
    progress: Progress | None = None
    columns: Columns = field(default_factory=Columns)
    _pool: Pool | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within this, workers stay for what comes next."""
        if self._pool is not None:
            yield
            return
        self._pool = Pool(self.executor, self.workers)
        try:
            yield
        finally:
            pool, self._pool = self._pool, None
            pool.close()

    def run(
        self,
        what: str,
        size: int,
        task: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        each: Callable[[T | BaseException], None] = lambda outcome: None,
    ) -> list[T | BaseException]:
        """Run a task for each tuple of arguments; outcomes in their order, errors among them.

        Args:
            what: what is being done, in a word.
            size: about how many bytes there are to read.
            each: called with each outcome as it comes.
        """
        total = len(arguments)
        small = self.executor == "processes" and self.workers is None and (total < 2 or size < SMALL_BYTES)
        done, read = 0, 0

        def on_progress(outcome: T | BaseException) -> None:
            nonlocal done, read
            done += 1
            read += outcome.info.json_bytes if isinstance(outcome, CachedTrace) else 0
            each(outcome)
            self._tell(what, done, total, read)

        self._tell(what, 0, total, 0)
        if small:
            return run_tasks("serial", None, task, arguments, on_progress)
        return run_tasks(self.executor, self.workers, task, arguments, on_progress, self._pool)

    def _tell(self, what: str, done: int, total: int, read: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total, read)


def of_rank(task: Callable[..., T], rank: int, arguments: tuple[Any, ...]) -> tuple[int, T]:
    """A task of a rank, with whose it was."""
    return rank, task(*arguments)


def by_rank(results: Mapping[str, pl.DataFrame]) -> Callable[[int], dict[str, pl.DataFrame]]:
    """A rank's own rows of results, for its task: all ranks' rows to each would be quadratic in ranks."""
    parts = {
        name: frame.partition_by("rank", as_dict=True) for name, frame in results.items() if "rank" in frame.columns
    }

    def own_rows(rank: int) -> dict[str, pl.DataFrame]:
        own = {name: frames.get((rank,), results[name].clear()) for name, frames in parts.items()}
        return {name: own.get(name, frame) for name, frame in results.items()}

    return own_rows


def analyze_rank(
    wanted: Sequence[Asked],
    rank: int,
    traces: Sequence[CachedTrace],
    options: Options,
    world_size: int | None,
    results: Mapping[str, pl.DataFrame],
    kept: Columns,
) -> dict[Asked, Part | RankscopeError]:
    """The task of a worker: one rank's share of some analyses that read tables.

    One of them that fails does not take the others with it: its error stands in its place.

    Args:
        kept: columns that were read before, where the task runs in the process that keeps them.
    """
    reads = {each: get_analysis(each[0]).wants(dict(each[1])) for each in wanted}
    columns: dict[str, set[str]] = {}
    for own in reads.values():
        for table, names in own.items():
            columns.setdefault(table, set()).update(names)
    try:
        tables = {table: kept.load(traces, table, names) for table, names in columns.items()}
    except DamagedTablesError:
        # The cache's disk may lose what it held; the trace is still there.
        anew = [ingest_trace(trace.info.path, again=True) for trace in traces]
        tables = {table: kept.load(anew, table, names) for table, names in columns.items()}
    inputs = Inputs(options, tuple(trace.info for trace in traces), results, rank, world_size)
    made: dict[Asked, Part | RankscopeError] = {}
    for each, own in reads.items():
        mine = {table: _columns(tables[table], (*names, "window")) for table, names in own.items()}
        try:
            made[each] = get_analysis(each[0]).per_rank(mine, replace(inputs, parameters=dict(each[1])))
        except RankscopeError as error:
            made[each] = error
        except Exception as error:
            # Not every error can be sent from one process to another.
            made[each] = AnalysisError(describe_error(error))
    return made


def _columns(table: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Some columns of a table: without a plan, which takes longer than they do."""
    return table if table.width == len(names) else pl.DataFrame([table.get_column(name) for name in names])

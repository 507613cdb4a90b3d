"""The task of a worker for one rank, and how tasks are distributed.

In: analyses, and the cached tables of a rank. Out: that rank's part of each analysis, or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import polars as pl

from rankscope.analyses import get_analysis
from rankscope.errors import AnalysisError, RankscopeError, describe_error
from rankscope.executors import Pool, check_kind, run_tasks
from rankscope.ingest.task import ingest_trace
from rankscope.results import Inputs, Parameters, Part, Value
from rankscope.results.failures import FAILURES
from rankscope.store.cache import CachedTrace, DamagedTablesError
from rankscope.store.column_cache import Columns
from rankscope.store.part_cache import keep_part

T = TypeVar("T")

Asked = tuple[str, tuple[tuple[str, Value], ...]]
"""An analysis's name, and a value for each of its own parameters: the key of a result."""

# Below this much to read, starting workers takes longer than the reading.
SMALL_BYTES = 2 << 20

Progress = Callable[[str, int, int, int], None]
"""Called after each task: the activity, tasks done, total tasks, bytes of JSON read so far."""


def asked(name: str, given: Parameters | None = None) -> Asked:
    """An analysis with its parameters: given values, else the defaults.

    Raises:
        AnalysisError: there is no analysis with that name.
        ConfigError: it has no such parameter, or the value is not valid.
    """
    analysis = get_analysis(name)
    return analysis.name, tuple(analysis.choose(given).items())


@dataclass
class Tasks:
    """Runs tasks on one kind of executor, and reports their progress.

    Attributes:
        executor: the kind: ``processes``, ``serial``, …
        workers: tasks at once; None for one per core, and no worker at all if there is little work.
        progress: called after each task.
        columns: columns that tasks in this process have read, kept for later ones.

    Raises:
        ConfigError: there is no such executor.
    """

    executor: str = "processes"
    workers: int | None = None
    progress: Progress | None = None
    columns: Columns = field(default_factory=Columns)
    _pool: Pool | None = None

    def __post_init__(self) -> None:
        check_kind(self.executor)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the workers for the next tasks in this block."""
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
    """A task with its rank."""
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
    traces: Sequence[CachedTrace],
    inputs: Inputs,
    kept: Columns,
    digests: Mapping[Asked, bytes],
) -> dict[Asked, Part | RankscopeError]:
    """The task of a worker: one rank's share of some analyses that read tables.

    If one fails, its error takes its place and the others continue.

    Args:
        kept: columns that were read before, where the task runs in the process that keeps them.
        digests: the parts to cache, with what identifies their inputs.
    """
    reads = {each: get_analysis(each[0]).wants(dict(each[1])) for each in wanted}
    columns: dict[str, set[str]] = {}
    for own in reads.values():
        for table, names in own.items():
            columns.setdefault(table, set()).update(names)
    named = inputs.options.named_steps if "step" in columns.get("annotations", ()) else ()
    if named:
        columns["annotations"].add("incomplete_step")
    try:
        tables = {table: kept.load(traces, table, names) for table, names in columns.items()}
    except DamagedTablesError:
        # Cached tables may be lost; the trace is still there.
        anew = [ingest_trace(trace.info.path, again=True) for trace in traces]
        tables = {table: kept.load(anew, table, names) for table, names in columns.items()}
    if named:
        shown = pl.when(pl.col("incomplete_step").is_in(named)).then("incomplete_step")
        tables["annotations"] = tables["annotations"].with_columns(pl.coalesce("step", shown).alias("step"))
    made: dict[Asked, Part | RankscopeError] = {}
    for each, own in reads.items():
        mine = {table: _columns(tables[table], (*names, "window")) for table, names in own.items()}
        try:
            part = get_analysis(each[0]).part_of(mine, replace(inputs, parameters=dict(each[1])))
        except RankscopeError as error:
            made[each] = error
        except FAILURES as error:
            # Not every error can be sent from one process to another.
            made[each] = AnalysisError(describe_error(error))
        else:
            made[each] = part
            if each in digests:
                keep_part(traces, each[0], digests[each], part)
    return made


def _columns(table: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Some columns of a table: without a plan, which takes longer than they do."""
    return table if table.width == len(names) else pl.DataFrame([table.get_column(name) for name in names])

"""A worker's task for one rank, and how tasks are distributed.

In: analyses, and the cached tables of a rank. Out: that rank's part of each analysis, or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import polars as pl

from rankscope.analyses import get_analysis
from rankscope.engine.executors import OnOutcome, Pool, check_kind, in_order, run_each
from rankscope.errors import AnalysisError, RankscopeError, describe_error
from rankscope.ingest.task import ingest_again
from rankscope.primitives.activity import with_category
from rankscope.results import Inputs, Parameters, Part, Value, concat_ranks
from rankscope.results.compressed_frames import CompressedFrame, StoredFrame
from rankscope.results.failures import FAILURES
from rankscope.store.cache import CachedTrace, DamagedTablesError
from rankscope.store.column_cache import Columns
from rankscope.store.part_cache import keep_parts

T = TypeVar("T")

AnalysisKey = tuple[str, tuple[tuple[str, Value], ...]]
"""An analysis's name and a value for each of its parameters: the key of a result."""

_COLLECTIVE = "is_collective"

# Reading less than this takes less time than starting workers.
SMALL_BYTES = 2 << 20

Progress = Callable[[str, int, int, int], None]
"""Called after each task: the activity, tasks done, total tasks, bytes of JSON read so far."""


def analysis_key(name: str, given: Parameters | None = None) -> AnalysisKey:
    """The key of an analysis with the given parameter values, else the defaults.

    Raises:
        AnalysisError: there is no analysis with that name.
        ConfigError: it has no such parameter, or the value is not valid.
    """
    analysis, chosen = get_analysis(name).view(given or {})
    return analysis.name, tuple(analysis.choose(chosen).items())


@dataclass
class Tasks:
    """Runs tasks on one kind of executor, and reports their progress.

    Attributes:
        executor: the kind: ``processes``, ``serial``, …
        workers: tasks at once; None for one per core, and no workers if there is little work.
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
    def keep_workers(self) -> Iterator[None]:
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
        on_outcome: Callable[[T | BaseException], None] = lambda outcome: None,
    ) -> list[T | BaseException]:
        """Run a task for each tuple of arguments; outcomes in their order, errors among them.

        The parameters are those of `run_each`, whose outcomes are not kept.
        """
        return in_order(lambda keep: self.run_each(what, size, task, arguments, keep), len(arguments), on_outcome)

    def run_each(
        self,
        what: str,
        size: int,
        task: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        on_outcome: OnOutcome[T],
    ) -> None:
        """Run a task for each tuple of arguments, and hand over each outcome, which may be an error, as it arrives.

        Args:
            what: the activity, in one word.
            size: about how many bytes there are to read.
            on_outcome: called with the index of a task and its outcome.
        """
        total = len(arguments)
        small = self.executor == "processes" and self.workers is None and (total < 2 or size < SMALL_BYTES)
        done, read = 0, 0

        def arrived(index: int, outcome: T | BaseException) -> None:
            nonlocal done, read
            done += 1
            read += outcome.info.json_bytes if isinstance(outcome, CachedTrace) else 0
            on_outcome(index, outcome)
            self._report(what, done, total, read)

        self._report(what, 0, total, 0)
        if small:
            run_each("serial", None, task, arguments, arrived)
        else:
            run_each(self.executor, self.workers, task, arguments, arrived, self._pool)

    def _report(self, what: str, done: int, total: int, read: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total, read)


def with_rank(task: Callable[..., T], rank: int, arguments: tuple[Any, ...]) -> tuple[int, T]:
    """Run a task, and return its rank with the result."""
    return rank, task(*arguments)


class RankRows:
    """Each rank's rows of results, for its task: sending all rows would be quadratic in ranks.

    They are cut out when they are asked for. Of a compressed frame only the block that was used last is kept, so ranks
    are best asked for in the frame's order.

    Args:
        frame: rows with a column ``rank``.
    """

    def __init__(self, frame: StoredFrame) -> None:
        self._blocks = frame if isinstance(frame, CompressedFrame) else CompressedFrame([])
        self._empty = pl.DataFrame(schema=frame.schema)
        self._in_blocks: dict[int, list[int]] = {}
        self._at, self._last = -1, _Divided(self._empty)
        if isinstance(frame, CompressedFrame):
            for number, ranks in enumerate(frame.blocks("rank")):
                for rank in ranks["rank"].unique().drop_nulls():
                    self._in_blocks.setdefault(rank, []).append(number)
        else:
            self._last = _Divided(frame)

    def of(self, rank: int) -> pl.DataFrame:
        """A rank's rows."""
        if not self._blocks.height:
            return self._last.rows_of(rank)
        found = [self._block(number).rows_of(rank) for number in self._in_blocks.get(rank, ())]
        return pl.concat(found) if found else self._empty

    def _block(self, number: int) -> _Divided:
        if self._at != number:
            self._at, self._last = number, _Divided(self._blocks.block(number))
        return self._last


class _Divided:
    """A frame by rank: slices, which need no memory, if the rows are in the order of ranks."""

    def __init__(self, frame: pl.DataFrame) -> None:
        ranks = frame["rank"]
        in_order = ranks.is_sorted() and not ranks.null_count()
        self._frame = frame if in_order else frame.sort("rank", nulls_last=True, maintain_order=True)
        self._ranks = self._frame["rank"].drop_nulls().to_numpy()

    def rows_of(self, rank: int) -> pl.DataFrame:
        first, end = np.searchsorted(self._ranks, rank), np.searchsorted(self._ranks, rank, side="right")
        return self._frame.slice(int(first), int(end - first))


def is_own_part(name: str) -> bool:
    """Whether a rank's rows of an analysis's result are its own part: the result concatenates the parts."""
    analysis = get_analysis(name)
    return analysis.across_ranks is None and bool(analysis.reads)


def own_rows(name: str, part: Part | BaseException | None) -> pl.DataFrame:
    """A rank's rows of the result, from its part of an analysis that `is_own_part`; none if that failed."""
    return concat_ranks([part] if isinstance(part, pl.DataFrame) else [], get_analysis(name).columns)


def analyze_rank(
    keys: Sequence[AnalysisKey],
    traces: Sequence[CachedTrace],
    inputs: Inputs,
    column_cache: Columns,
    digests: Mapping[AnalysisKey, bytes],
) -> dict[AnalysisKey, Part | RankscopeError]:
    """A worker's task: one rank's share of some analyses that read tables.

    If one fails, its error takes its place and the others continue.

    Args:
        keys: the analyses; what one requires is in `inputs`, or among those before it.
        inputs: what `per_rank` gets besides the tables; the parameters are added here.
        column_cache: columns that were read before, if the task runs in the process that keeps them.
        digests: the parts to cache, with digests of their inputs.
    """
    known = dict(inputs.results)
    inputs = replace(inputs, shared={})
    reads = {key: get_analysis(key[0]).wants(dict(key[1])) for key in keys}
    columns: dict[str, set[str]] = {}
    for tables_read in reads.values():
        for table, names in tables_read.items():
            columns.setdefault(table, set()).update(names)
    named = inputs.options.named_steps if "step" in columns.get("annotations", ()) else ()
    if named:
        columns["annotations"].add("incomplete_step")
    try:
        tables = column_cache.load_all(traces, columns)
    except DamagedTablesError:
        # The cached tables are lost, but the trace may still be there.
        reread = [ingest_again(trace) for trace in traces]
        tables = column_cache.load_all(reread, columns)
    # Else the time of such a file would stand for a step, as where none is marked.
    empty = [number for number, trace in enumerate(traces) if _has_no_iteration(trace, inputs.options.named_steps)]
    if empty:
        tables = {name: rows.filter(~pl.col("window").is_in(empty)) for name, rows in tables.items()}
    if named:
        shown = pl.when(pl.col("incomplete_step").is_in(named)).then("incomplete_step")
        tables["annotations"] = tables["annotations"].with_columns(pl.coalesce("step", shown).alias("step"))
    if _COLLECTIVE in columns.get("device_events", ()):
        # Nearly all that read it need the category, too.
        tables["device_events"] = with_category(tables["device_events"], inputs.options.communication)
    parts: dict[AnalysisKey, Part | RankscopeError] = {}
    to_keep: dict[str, tuple[bytes, Part]] = {}
    for key, tables_read in reads.items():
        selected = {table: _columns(tables[table], names) for table, names in tables_read.items()}
        computed = {name: parts.get(analysis_key(name)) for name in get_analysis(key[0]).requires if name not in known}
        results = {**known, **{name: own_rows(name, part) for name, part in computed.items()}}
        try:
            part = get_analysis(key[0]).part_of(selected, replace(inputs, results=results, parameters=dict(key[1])))
        except RankscopeError as error:
            parts[key] = error
        except FAILURES as error:
            # Not every error can be pickled.
            parts[key] = AnalysisError(describe_error(error))
        else:
            parts[key] = part
            # A part that lacks what another analysis could not compute is not cached.
            if key in digests and all(isinstance(part, pl.DataFrame) for part in computed.values()):
                to_keep[key[0]] = digests[key], part
    if to_keep:
        keep_parts(traces, to_keep)
    return parts


def _has_no_iteration(trace: CachedTrace, named: Collection[int]) -> bool:
    """Whether all steps of a file are incomplete, and none of them was chosen by its number."""
    incomplete = trace.incomplete_steps
    return bool(incomplete) and trace.info.first_step is None and not any(step in incomplete for step in named)


def _columns(table: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Some columns of a table and those that come with them. `select` would plan a query, which takes longer."""
    chosen = [*names, "window", *(["category"] if _COLLECTIVE in names else [])]
    return table if table.width == len(chosen) else pl.DataFrame([table.get_column(name) for name in chosen])

"""Keep columns in memory for the next analysis, up to a limit.

Most analyses of a rank need the same few columns, and reading and decompressing them takes longer than most analyses.
Tables on disk are named by their trace's key and never change, and the key here includes which steps are incomplete:
nothing can be stale.

Only the main process keeps columns. Pickled for a worker, the cache is empty with a limit of 0: a worker sees one rank
after another, and all workers together would keep several times the limit.

In: a trace's key, a table and columns. Out: a frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

import polars as pl

from rankscope.store.cache import CachedTrace

LIMIT_BYTES = 256 << 20
"""About five million events, with the columns that most analyses need."""
_WINDOW = "window"

Key = tuple[tuple[tuple[str, tuple[int, ...]], ...], str, str]


class Columns:
    """Columns of ranks' tables, the least recently used first.

    Args:
        limit: bytes that may be kept; 0 for none.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[pl.Series, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Columns], tuple[int]]:
        return Columns, (0,)

    @property
    def bytes(self) -> int:
        """The size of all columns."""
        return self._bytes

    def load(self, traces: Sequence[CachedTrace], table: str, columns: Iterable[str]) -> pl.DataFrame:
        """Some columns of a rank's table, its files concatenated; ``window`` is the number of a row's file.

        Raises:
            DamagedTablesError: the cached tables cannot be read.
        """
        return self.load_all(traces, {table: columns})[table]

    def load_all(self, traces: Sequence[CachedTrace], tables: Mapping[str, Iterable[str]]) -> dict[str, pl.DataFrame]:
        """Some columns of several of a rank's tables, as `load` gives each; read together.

        Raises:
            DamagedTablesError: the cached tables cannot be read.
        """
        folders = tuple((trace.place, trace.incomplete_steps) for trace in traces)
        wanted = {table: [*sorted(columns), _WINDOW] for table, columns in tables.items()}
        found: dict[tuple[str, str], pl.Series] = {}
        with self._lock:
            for table, name in ((table, name) for table, names in wanted.items() for name in names):
                if (kept := self._kept.get((folders, table, name))) is not None:
                    self._kept.move_to_end((folders, table, name))
                    found[table, name] = kept[0]
        missing = {table: [name for name in names if (table, name) not in found] for table, names in wanted.items()}
        missing = {table: names for table, names in missing.items() if names}
        if missing:
            for table, read in _read(traces, missing).items():
                found |= {(table, name): read.get_column(name) for name in missing[table]}
            self._keep(
                {(folders, *key): found[key] for table, names in missing.items() for key in [(table, n) for n in names]}
            )
        return {table: pl.DataFrame([found[table, name] for name in names]) for table, names in wanted.items()}

    def _keep(self, columns: dict[Key, pl.Series]) -> None:
        with self._lock:
            for key, column in columns.items():
                size = int(column.estimated_size())
                if key in self._kept or size > self._limit:
                    continue
                self._kept[key] = column, size
                self._bytes += size
            while self._bytes > self._limit:
                _, (_, size) = self._kept.popitem(last=False)
                self._bytes -= size


def _read(traces: Sequence[CachedTrace], tables: Mapping[str, Sequence[str]]) -> dict[str, pl.DataFrame]:
    """Columns from disk, of several files concatenated."""
    # Without any other column there is none to count the rows of.
    columns = {table: [name for name in names if name != _WINDOW] or None for table, names in tables.items()}
    parts: dict[str, list[pl.DataFrame]] = {table: [] for table in tables}
    for number, trace in enumerate(traces):
        window = pl.Series(_WINDOW, [number], dtype=pl.Int16)
        for table, frame in trace.load_all(columns).items():
            parts[table].append(frame.with_columns(window.new_from_index(0, frame.height)))
    return {table: frames[0] if len(frames) == 1 else pl.concat(frames) for table, frames in parts.items()}

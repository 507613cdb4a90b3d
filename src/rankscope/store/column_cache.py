"""Keep columns in memory for the next analysis, up to a limit.

Most analyses of a rank need the same few columns, and reading and decompressing them takes longer than most analyses.
Tables on disk are named by their trace's key and never change, so nothing here can be stale.

Only the main process keeps columns. Pickled for a worker, the cache is empty with a limit of 0: a worker sees one rank
after another, and all workers together would keep several times the limit.

In: a trace's key, a table and columns. Out: a frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

import polars as pl

from rankscope.store.cache import CachedTrace

LIMIT_BYTES = 256 << 20
"""About five million events, with the columns that most analyses need."""
_WINDOW = "window"

Key = tuple[tuple[str, ...], str, str]


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
        folders = tuple(str(trace.folder) for trace in traces)
        wanted = [*sorted(columns), _WINDOW]
        found: dict[str, pl.Series] = {}
        with self._lock:
            for name in wanted:
                if (kept := self._kept.get((folders, table, name))) is not None:
                    self._kept.move_to_end((folders, table, name))
                    found[name] = kept[0]
        missing = [name for name in wanted if name not in found]
        if missing:
            read = pl.concat(
                trace.load(table, missing[:-1] if missing[-1] == _WINDOW else missing).with_columns(
                    pl.lit(number, pl.Int16).alias(_WINDOW)
                )
                for number, trace in enumerate(traces)
            )
            found |= {name: read.get_column(name) for name in missing}
            self._keep({(folders, table, name): found[name] for name in missing})
        return pl.DataFrame([found[name] for name in wanted])

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

"""What a computation over tables may raise: exceptions, and panics of Polars, which are not an `Exception`.

In: nothing. Out: `FAILURES`, for ``except`` where the failure of one rank, table or rule must not stop the others.
"""

from __future__ import annotations

import polars as pl

FAILURES: tuple[type[BaseException], ...] = (Exception, pl.exceptions.PanicException)

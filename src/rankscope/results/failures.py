"""What a computation over tables may raise: exceptions, and panics of Polars, which are no `Exception`.

In: nothing. Out: `FAILURES`, for ``except`` where one failure must stay one: a rank's, a table's, a rule's.
"""

from __future__ import annotations

import polars as pl

FAILURES: tuple[type[BaseException], ...] = (Exception, pl.exceptions.PanicException)

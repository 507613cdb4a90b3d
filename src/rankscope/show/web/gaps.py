"""The gaps of one row of the analysis `idle`, for a reader who goes from one to the next.

In: a request that names the row. Out: its gaps on the run's clock, the longest first, as a column file.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from starlette.requests import Request

from rankscope.analyses.idle import GapKey, analysis, extra_columns, gaps_of
from rankscope.results import Options
from rankscope.show.timeline.column_file import column_file
from rankscope.show.timeline.timeline import Timeline
from rankscope.show.web.params import number
from rankscope.show.web.responses import RefusedError

MOST = 10_000
_LIMIT = 1 << 53
_TABLES = {**analysis.reads, **extra_columns({"of": "all"})}


def gaps_file(request: Request, timeline: Timeline, options: Options) -> bytes:
    """The gaps of a row: `start_ns`, `end_ns`, `idle_ns`; meta `count` of all, also of those beyond `MOST`.

    Raises:
        RefusedError: there is no such rank.
    """
    rank = number(request, "rank", 0, 1 << 31)
    if rank not in timeline.traces:
        raise RefusedError(404, "there is no such rank")
    clock = timeline.clock.ranks[rank]
    device, stream = (number(request, name, -_LIMIT, _LIMIT, _LIMIT) for name in ("device", "stream"))
    key = GapKey(
        None if device == _LIMIT else device,
        None if stream == _LIMIT else stream,
        request.query_params.get("cause", ""),
        request.query_params.get("detail"),
    )
    parts = []
    for window, trace in enumerate(timeline.traces[rank]):
        found = gaps_of(trace.load_all(_TABLES), options, key)
        times = {name: clock.run_time(window, found[name].to_numpy()) for name in ("start_ns", "end_ns")}
        parts.append(found.with_columns(**{name: pl.Series(time) for name, time in times.items()}))
    every = pl.concat(parts).sort("idle_ns", "start_ns", descending=[True, False])
    sent = every.head(MOST)
    columns = {name: ("f64", sent[name].to_numpy().astype(np.float64)) for name in ("start_ns", "end_ns", "idle_ns")}
    return column_file(columns, {"count": every.height})

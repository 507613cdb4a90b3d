"""A table of the page as a file.

In: the result of an analysis. Out: Parquet, with every row and the exact types, as `rankscope analyze` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from rankscope.analyses import current_name
from rankscope.engine.pipeline.clock import RunClock, in_run_time
from rankscope.results import Result
from rankscope.show.export.formats import to_parquet
from rankscope.show.web.responses import RefusedError, answer

PARQUET = "application/vnd.apache.parquet"


def parquet_answer(request: Request, results: Mapping[str, Result], clock: RunClock | None, tag: str) -> Response:
    """The table that the address names, to be saved.

    Raises:
        RefusedError: there is none of this name.
    """
    name = current_name(request.path_params["name"])
    result = results.get(name)
    if result is None or clock is None:
        raise RefusedError(404, "there is no such table, or it is not ready yet", "api/summary lists the tables")
    file = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    headers = {"Content-Disposition": f'attachment; filename="rankscope_{file}.parquet"'}
    return answer(request, to_parquet(in_run_time(result, clock), {}), PARQUET, tag, headers)

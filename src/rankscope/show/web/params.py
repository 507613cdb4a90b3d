"""Strict parsing of request parameters.

In: query parameters. Out: numbers within their bounds, or a 400 that names the bad parameter.
"""

from __future__ import annotations

import re

from starlette.requests import Request

from rankscope.rundir.ranges import parse_range
from rankscope.show.web.responses import RefusedError

MAX_LIST = 200_000
# Times on the page: exact in a double.
MAX_NS = 1 << 53


def number(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    """An integer between two bounds, both included.

    Raises:
        RefusedError: it is missing and there is no default, or it is something else.
    """
    text = request.query_params.get(name)
    if text is None:
        if default is None:
            raise RefusedError(400, f"{name} is missing", f"an integer from {low} to {high}")
        return default
    if not re.fullmatch(r"-?\d{1,19}", text) or not low <= int(text) <= high:
        raise RefusedError(400, f"{name} is not an integer from {low} to {high}")
    return int(text)


def span(request: Request) -> tuple[int, int]:
    """The window `from` … `to`, ns on the run's clock."""
    first = number(request, "from", -MAX_NS, MAX_NS)
    last = number(request, "to", -MAX_NS, MAX_NS)
    if last < first:
        raise RefusedError(400, "the window ends before it starts")
    return first, last


def numbers(text: str, name: str, limit: int) -> list[int]:
    """`0-15,40` as an ascending list of numbers below a limit.

    Raises:
        RefusedError: it is something else.
    """
    found: list[int] = []
    for part in text.split(","):
        one = parse_range(part)
        if one is None:
            raise RefusedError(400, f"{name} is not a valid list of numbers", "write 0-15,40")
        low, high = one
        if high < low or (found and low <= found[-1]):
            raise RefusedError(400, f"{name} is not in ascending order", "write each number once, smallest first")
        if high >= limit or len(found) + high - low >= MAX_LIST:
            raise RefusedError(404, f"{name} has a number out of range: the limit is {limit}")
        found += range(low, high + 1)
    return found


def ranks_of(request: Request) -> list[int] | None:
    """The parameter `ranks`; None without it.

    Raises:
        RefusedError: it is not a valid list.
    """
    text = request.query_params.get("ranks")
    return numbers(text, "ranks", 1 << 30) if text else None

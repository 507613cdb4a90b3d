"""Guess where one event ends and the next begins, without parsing.

In: the beginning of a text of events. Out: the last boundary in it.
"""

from __future__ import annotations

import re
from collections import deque

# Kineto begins an event with its phase; a boundary with that in it is hardly ever inside an event's arguments.
_KINETO_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"ph")')
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')


def last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """Where the second-to-last event seems to end and the last one to start."""
    return _last_match(_KINETO_BOUNDARY, buffer, 256 << 10) or _last_match(_BOUNDARY, buffer, len(buffer))


def _last_match(boundary: re.Pattern[bytes], buffer: bytes, limit: int) -> tuple[int, int] | None:
    reach = 64 << 10
    while True:
        start = max(0, len(buffer) - min(reach, limit))
        found = deque(boundary.finditer(buffer, start), maxlen=1)
        if found:
            return found[0].start() + 1, found[0].end()
        if start == 0 or reach >= limit:
            return None
        reach *= 4

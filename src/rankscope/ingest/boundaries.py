"""Guess where one event ends and the next begins, without parsing.

Kineto writes events without a category in a block at the beginning (names of threads) and at the end, which the
compiled reader does not take: a text is cut there. A guess is right exactly if all pieces decode.

In: a text of events. Out: the last boundary in it, or its pieces.
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


# How Kineto begins events with a category (ranges, arrows, instants with a category) and without one (names of threads
# and processes, counters, marks).
_CATEGORIZED = rb'\{\s*"ph"\s*:\s*"(?:[Xstf]"|i"\s*,\s*"cat")'
_UNCATEGORIZED = rb'\{\s*"(?:name"|ph"\s*:\s*"(?:[MC]"|i"\s*,\s*"(?!cat")))'
_STARTS_UNCATEGORIZED = re.compile(rb"\[\s*" + _UNCATEGORIZED)
# A brace first: the search for a pattern that begins with an alternative is slow.
_NEXT_CATEGORIZED, _NEXT_UNCATEGORIZED = (
    re.compile(rb"\}\s*,\s*(?=" + begins + rb")") for begins in (_CATEGORIZED, _UNCATEGORIZED)
)
# More pieces are not worth cutting, nor are shorter ones between events without a category.
_MAX_PIECES = 9
_MIN_BYTES = 4096


def pieces(text: bytes, reach: int | None = None) -> list[bytes]:
    """Split a JSON array of events where events with and without a category meet.

    The boundaries are guesses: a piece need not be a valid array.

    Args:
        reach: look for events without a category only at the beginning and in this many bytes at the end.
    """
    spans: list[tuple[int, int]] = []
    without = _STARTS_UNCATEGORIZED.match(text) is not None
    start, at = 1, 0
    while len(spans) < _MAX_PIECES:
        if not without and reach is not None:
            at = max(at, len(text) - reach)
        found = (_NEXT_CATEGORIZED if without else _NEXT_UNCATEGORIZED).search(text, at)
        if found is None:
            break
        # The match begins with the brace that ends the piece.
        if spans and not without and found.start() - start < _MIN_BYTES:
            start = spans.pop()[0]
        else:
            spans.append((start, found.start() + 1))
            start = found.end()
        without, at = not without, found.end()
    if not spans:
        return [text]
    view = memoryview(text)
    return [b"".join((b"[", view[first:last], b"]")) for first, last in (*spans, (start, len(text) - 1))]

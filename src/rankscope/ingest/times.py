"""Microseconds as text to nanoseconds as integers, exactly."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np

from rankscope.ingest.chunks import Chunk
from rankscope.ingest.events import EXACT_TIMES
from rankscope.primitives.intervals import Int64

# Below 2^43 µs (101 days) neighbouring float64 are less than 1 ns apart, so a number with three decimals is the
# nearest float of exactly one integer of nanoseconds, and rounding finds it. Recent Kineto writes times since
# `baseTimeNanoseconds`, which is less than 92 days back. Older files count from 1970: most in whole microseconds.
EXACT_FLOAT_US = float(1 << 43)
# The greatest instant that fits int64 nanoseconds; anything beyond is damage, and is set to 0.
MAX_US = float((1 << 63) // 1000 - 1)

_FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d+[.eE]')


def event_times(chunk: Chunk) -> tuple[Int64, Int64]:
    """Start and duration of every event of a chunk, ns; duration −1 where the event has none."""
    stamps = np.array([event.ts for event in chunk.events], dtype=np.float64)
    durations = np.array([event.dur for event in chunk.events], dtype=np.float64)
    absent = np.isnan(durations) | (durations < 0)
    durations[absent] = 0.0
    stamps[~(np.abs(stamps) < MAX_US)] = 0.0
    durations[~(durations < MAX_US)] = 0.0
    spent = np.rint(durations * 1000.0).astype(np.int64)
    spent[absent] = -1
    if stamps.size and np.abs(stamps).max() >= EXACT_FLOAT_US:
        if _FRACTION.search(chunk.text):
            return _exact(chunk), spent
        return stamps.astype(np.int64) * 1000, spent
    return np.rint(stamps * 1000.0).astype(np.int64), spent


def _exact(chunk: Chunk) -> Int64:
    try:
        raws = [bytes(event.ts) for event in EXACT_TIMES.decode(chunk.text)]
    except msgspec.DecodeError:
        raws = [str(event.ts).encode() for event in chunk.events]
    return np.array([_nanoseconds(raw) for raw in raws], dtype=np.int64)


def _nanoseconds(text: bytes) -> int:
    digits = text.strip(b'"')
    whole, _, fraction = digits.partition(b".")
    if len(fraction) <= 3 and whole.isdigit() and (fraction.isdigit() or not fraction):
        value = int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    else:
        try:
            value = int((Decimal(digits.decode()) * 1000).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            return 0
    return value if -(1 << 63) <= value < (1 << 63) else 0

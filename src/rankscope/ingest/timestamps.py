"""Convert microseconds as text to nanoseconds as integers, exactly.

In: chunks of events. Out: starts and durations as int64 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.ingest.chunks import Chunk
from rankscope.ingest.event_types import EXACT_TIMES
from rankscope.primitives.intervals import Int64

Float64 = npt.NDArray[np.float64]

# Below 2^43 µs (101 days) neighboring float64 are less than 1 ns apart, so a number with three decimals is the
# nearest float of exactly one integer of nanoseconds, and rounding its fraction finds it. (Rounding a thousand times
# the number does not: beyond 2^42 the product is rounded once more, and 4458676522690.655 becomes one too few or many.)
# Recent Kineto writes times since `baseTimeNanoseconds`, which is less than 92 days back. Older files count from 1970:
# most in whole microseconds.
EXACT_FLOAT_US = float(1 << 43)
# Half of what int64 nanoseconds hold, so that a start and a duration can be added: the year 2116. Beyond is damage.
MAX_NS = 1 << 62
MAX_US = float(MAX_NS // 1000)
NO_TIME = -(1 << 63)
# Half of what a browser's numbers hold exactly: 52 days. No recording is as long; a time that far from the others, or a
# duration of that length, is damage.
FAR_NS = 1 << 52


def event_times(chunk: Chunk) -> tuple[Int64, Int64]:
    """Start and duration of every event of a chunk, ns.

    A start that is absent or out of range is `NO_TIME`; a duration that is absent or absurd is −1.
    """
    if chunk.times is not None:
        start, spent = chunk.times
        spent[(spent < 0) | (spent >= FAR_NS)] = -1
        return start, spent
    written = [event.ts for event in chunk.events]
    try:
        stamps = _floats(written)
    except OverflowError:  # an integer beyond the range of floats is not a time
        written = [ts if ts is None or abs(ts) < MAX_US else None for ts in written]
        stamps = _floats(written)
    durations = _floats([event.dur for event in chunk.events])
    absent = ~((durations >= 0) & (durations < FAR_NS / 1000))
    durations[absent] = 0.0
    spent = _rounded(durations)
    spent[absent] = -1
    timeless = ~(np.abs(stamps) < MAX_US)
    stamps[timeless] = 0.0
    # Integers are decoded as such, and a float64 holds them up to 2^53.
    if stamps.size and np.abs(stamps).max() >= EXACT_FLOAT_US and _has_fractions(written):
        start = _exact(chunk)
    else:
        start = _rounded(stamps)
    start[timeless] = NO_TIME
    return start, spent


def median_start(start: Int64) -> int | None:
    """The median start; None if there is none."""
    known = start[start != NO_TIME]
    return int(np.sort(known)[known.size // 2]) if known.size else None


def _has_fractions(values: Sequence[int | float | None]) -> bool:
    # Counting types only compares pointers.
    kinds = list(map(type, values))
    return kinds.count(int) != len(kinds) and float in kinds


def _floats(values: Sequence[float | None]) -> Float64:
    """Numbers as an array, NaN for None. Polars reads a list in half the time of NumPy, one with None in a tenth."""
    found: Float64 = pl.Series(values, dtype=pl.Float64).to_numpy(writable=True)
    return found


def _rounded(microseconds: Float64) -> Int64:
    whole_us = np.floor(microseconds)
    nanoseconds: Int64 = whole_us.astype(np.int64) * 1000
    nanoseconds += np.rint((microseconds - whole_us) * 1000.0).astype(np.int64)
    return nanoseconds


def _exact(chunk: Chunk) -> Int64:
    try:
        raws = [bytes(event.ts) for event in EXACT_TIMES.decode(chunk.text)]
    except msgspec.DecodeError:
        raws = [str(event.ts).encode() for event in chunk.events]
    return np.array([_nanoseconds(raw) for raw in raws], dtype=np.int64)


def _nanoseconds(text: bytes) -> int:
    digits = text.strip(b'"')
    whole_us, _, fraction = digits.partition(b".")
    if len(fraction) <= 3 and whole_us.isdigit() and (fraction.isdigit() or not fraction):
        value = int(whole_us) * 1000 + int(fraction.ljust(3, b"0"))
    else:
        try:
            exact = Decimal(digits.decode()) * 1000
            # Without this an exponent of a billion would be written out, digit by digit.
            value = round(exact) if exact.adjusted() < 20 else 0
        except (ArithmeticError, ValueError):
            return 0
    return value if abs(value) < MAX_NS else 0

"""Device events by stream: their order, and the latest end so far at each.

In: device events. Out: rows by stream, and latest ends in ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64

# Stream numbers are mostly small: within this range they need not be ranked.
_NEAR = 1 << 12


@dataclass(frozen=True)
class Streams:
    """Events sorted by stream and start.

    Attributes:
        order: rows of the events in this order, shape ``(n,)``.
        first: the position of each stream's first event.
        reached: by position, the latest end so far on the stream, ns; shape ``(n,)``.
    """

    order: Int64
    first: Int64
    reached: Int64

    @classmethod
    def of(cls, device: pl.DataFrame) -> Streams:
        """The streams of device events.

        Args:
            device: start_ns, end_ns, device, stream.
        """
        stream = stream_numbers(device)
        # Tables are already in this order, so sorting is cheap.
        order = np.argsort(device["start_ns"].to_numpy(), kind="stable")
        first = np.zeros(min(order.size, 1), dtype=np.int64)
        if stream.any():
            order = order[np.argsort(stream[order], kind="stable")]
            stream = stream[order]
            first = np.append(0, np.flatnonzero(stream[1:] != stream[:-1]) + 1)
        reached = device["end_ns"].to_numpy()[order]
        for part in _parts(reached, first):
            np.maximum.accumulate(part, out=part)
        return cls(order, first, reached)

    @property
    def number(self) -> Int64:
        """By position, the number of the stream, from 0."""
        return np.repeat(np.arange(self.first.size), np.diff(self.first, append=self.order.size))

    def heads(self, device: pl.DataFrame, name: str) -> list[int | None]:
        """A column's value of each stream's first event.

        Args:
            device: the events from which the streams were made.
        """
        column = device[name]
        return [column[row] for row in self.order[self.first].tolist()]

    def rows(self) -> list[Int64]:
        """The rows of each stream's events, sorted by start."""
        return _parts(self.order, self.first)


def _parts(array: Int64, first: Int64) -> list[Int64]:
    """The array split at these positions."""
    bounds = [*first.tolist(), array.size]
    return [array[begin:end] for begin, end in pairwise(bounds)]


def stream_numbers(device: pl.DataFrame) -> npt.NDArray[np.integer]:
    """A number for each row that identifies its stream among all devices, ascending with device and stream.

    Args:
        device: device, stream; null counts as the lowest value.

    Returns:
        numbers from 0, 16-bit if that is enough, because NumPy radix-sorts these; shape ``(n,)``.
    """
    number = np.zeros(device.height, dtype=np.int64)
    count = 1
    for name in ("device", "stream"):
        value, known = values_and_validity(device[name])
        present = value if known.all() else value[known]
        if not present.size:
            continue
        least, most = int(present.min()), int(present.max())
        if least == most and present.size == value.size:
            continue
        if most - least < _NEAR:
            value, size = np.where(known, value - (least - 1), 0), most - least + 2
        else:
            value = device[name].rank("dense").fill_null(0).to_numpy().astype(np.int64)
            size = int(value.max()) + 1
        count *= size
        number = number * size + value
    return number.astype(np.uint16) if count <= 1 << 16 else number

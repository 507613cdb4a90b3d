"""Device events by stream: what precedes each event on its stream.

In: device events. Out: for each, the end of the ones before it, in ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64

# Streams' numbers are mostly small: below this they need not be ranked.
_NEAR = 1 << 12


@dataclass(frozen=True)
class Streams:
    """The events of each stream in the order of their starts, the streams behind one another.

    Attributes:
        order: rows of the events in this order, shape ``(n,)``.
        first: where in it each stream begins.
        reached: for each place in it the latest end so far on its stream, ns; shape ``(n,)``.
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
        # Tables are in this order, and sorting what is in order already costs next to nothing.
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
        """For each place in the order which stream it is of, from 0 on."""
        return np.repeat(np.arange(self.first.size), np.diff(self.first, append=self.order.size))

    def heads(self, device: pl.DataFrame, name: str) -> list[int | None]:
        """A column's value of each stream's first event.

        Args:
            device: the events that the streams are of.
        """
        column = device[name]
        return [column[row] for row in self.order[self.first].tolist()]

    def rows(self) -> list[Int64]:
        """The rows of each stream's events, by their starts."""
        return _parts(self.order, self.first)


def _parts(whole: Int64, first: Int64) -> list[Int64]:
    """An array from each of these places to the next."""
    bounds = [*first.tolist(), whole.size]
    return [whole[begin:end] for begin, end in pairwise(bounds)]


def stream_numbers(device: pl.DataFrame) -> npt.NDArray[np.integer]:
    """A number for each row that tells the streams of all devices apart, ascending with device and stream.

    Args:
        device: device, stream; null is one of its own, the lowest.

    Returns:
        from 0 on, of 16 bits where that is enough, which are sorted by counting; shape ``(n,)``.
    """
    number = np.zeros(device.height, dtype=np.int64)
    count = 1
    for name in ("device", "stream"):
        value, known = values_and_validity(device[name])
        there = value if known.all() else value[known]
        if not there.size:
            continue
        least, most = int(there.min()), int(there.max())
        if least == most and there.size == value.size:
            continue
        if most - least < _NEAR:
            value, size = np.where(known, value - (least - 1), 0), most - least + 2
        else:
            value = device[name].rank("dense").fill_null(0).to_numpy().astype(np.int64)
            size = int(value.max()) + 1
        count *= size
        number = number * size + value
    return number.astype(np.uint16) if count <= 1 << 16 else number

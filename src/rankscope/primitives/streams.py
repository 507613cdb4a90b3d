"""Device events stream by stream: what each had before it on its stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.nulls import values_and_known

# Streams' numbers are mostly small: below this they need not be ranked.
_NEAR = 256


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
            first = np.flatnonzero(np.diff(stream[order].astype(np.int64), prepend=-1))
        reached = device["end_ns"].to_numpy()[order]
        for part in np.split(reached, first[1:]):
            np.maximum.accumulate(part, out=part)
        return cls(order, first, reached)

    @property
    def number(self) -> Int64:
        """For each place in the order which stream it is of, from 0 on."""
        return np.repeat(np.arange(self.first.size), np.diff(self.first, append=self.order.size))

    def rows(self) -> list[Int64]:
        """The rows of each stream's events, by their starts."""
        return np.split(self.order, self.first[1:]) if self.first.size else []


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
        value, known = values_and_known(device[name])
        there = value if known.all() else value[known]
        if not there.size or (there.size == value.size and there.min() == there.max()):
            continue
        if int(there.max()) - int(there.min()) < _NEAR:
            value = np.where(known, value - there.min() + 1, 0)
        else:
            value = device[name].rank("dense").fill_null(0).to_numpy().astype(np.int64)
        count *= int(value.max()) + 1
        number = number * (int(value.max()) + 1) + value
    return number.astype(np.uint16) if count <= 1 << 16 else number

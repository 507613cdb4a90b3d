"""What an importer makes of a file of another profiler: events in Kineto's terms, with exact times.

An importer knows its format and `event_types`, and nothing of chunks of JSON, tables or analyses: it is a function from
a file to events and keys.

In: events, one by one. Out: chunks of them, as `chunks.EventStream` makes of JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from rankscope.ingest.chunks import Chunk
from rankscope.ingest.event_types import Event
from rankscope.ingest.salvage import Losses
from rankscope.ingest.timestamps import NO_TIME

_ROWS = 20_000
Timed = tuple[Event, "int | None", "int | None"]
"""An event, when it starts and how long it takes, ns; its own ``ts`` and ``dur`` are not read."""


@dataclass
class Imported:
    """The events of a file, to be iterated once; then the rest is complete.

    Attributes:
        metadata: the keys that Kineto would have written.
        losses: what could not be read.
        odd: counts of what has no place in a table, and why.
        bytes_read: the size of the file.
        others: further processes with device events in the file, which are not read.
    """

    events: Iterable[Timed]
    metadata: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    odd: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    others: int = 0

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in the file's order."""
        events = iter(self.events)
        while batch := list(islice(events, _ROWS)):
            start = [NO_TIME if start is None else start for _, start, _ in batch]
            duration = [-1 if duration is None else duration for _, _, duration in batch]
            times = np.array(start, dtype=np.int64), np.array(duration, dtype=np.int64)
            yield Chunk(b"", [event for event, _, _ in batch], times=times)

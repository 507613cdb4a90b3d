"""A Kineto trace to tables."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from rankscope.errors import NotATraceError
from rankscope.ingest.chunks import CHUNK_BYTES, EventStream
from rankscope.ingest.columns import ColumnBuilder
from rankscope.ingest.links import link
from rankscope.ingest.salvage import Losses
from rankscope.ingest.source import open_trace


@dataclass
class KinetoTrace:
    """One trace, read.

    Attributes:
        path: the file.
        tables: its tables, by name, as `store.schema` describes them.
        metadata: the top-level keys beside the events.
        counts: events in the file by phase and category, as written.
        losses: what could not be read.
        odd: counts of oddities that were read all the same.
        json_bytes: size of the decompressed text.
    """

    path: str
    tables: dict[str, pl.DataFrame]
    metadata: dict[str, object] = field(default_factory=dict)
    counts: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    losses: Losses = field(default_factory=Losses)
    odd: Counter[str] = field(default_factory=Counter)
    json_bytes: int = 0


def read_kineto(path: str, *, chunk_bytes: int = CHUNK_BYTES) -> KinetoTrace:
    """Read one trace.

    A file that is cut off or damaged in places gives what can be read; `KinetoTrace.losses` says what is gone.

    Raises:
        TraceError: the file cannot be opened.
        NotATraceError: it holds something else, or nothing at all that can be read.
    """
    with open_trace(path) as reader:
        stream = EventStream(reader.read, path, chunk_bytes)
        builder = ColumnBuilder(stream.losses)
        for chunk in stream:
            builder.add(chunk)
    if builder.counts and not any(phase for phase, _ in builder.counts):
        raise NotATraceError(
            "JSON, but no trace: an array of something else than events (none has a `ph`)",
            path=path,
            hint="rankscope reads the traces that torch.profiler exports",
        )
    if not builder.counts and (stream.losses.truncated or stream.losses.events):
        raise NotATraceError(
            f"no event of it can be read ({stream.losses.reason})",
            path=path,
            hint="the file is damaged; copy it again, or leave it out",
        )
    tables = link(builder.finish())
    if stream.losses.retyped:
        builder.odd["events with a field of an unexpected type"] += stream.losses.retyped
    return KinetoTrace(
        path, tables, _unfolded(stream.metadata), builder.counts, stream.losses, builder.odd, stream.bytes_read
    )


def _unfolded(metadata: dict[str, object]) -> dict[str, object]:
    """The metadata with objects that a producer wrote as text (`str(list)`, JSON in a string) read as objects."""
    unfolded = dict(metadata)
    for key in ("deviceProperties", "distributedInfo", "rankscope"):
        value = unfolded.get(key)
        if isinstance(value, str):
            for text in (value, value.replace("'", '"')):
                try:
                    unfolded[key] = json.loads(text)
                    break
                except (ValueError, RecursionError):
                    continue
    return unfolded

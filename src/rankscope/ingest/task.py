"""The task of a worker: one trace file, or one memory snapshot, into the cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.kineto import read_kineto
from rankscope.ingest.source import is_url
from rankscope.ingest.trace_facts import describe
from rankscope.store.cache import Cache, CachedTrace
from rankscope.store.key import trace_key
from rankscope.store.trace_info import TraceInfo

# Whether a file may be a memory snapshot is told by its name; what it is, by `read_snapshot`.
SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
# Some chunks: what is kept is twice as much at most.
_KEPT_BYTES = 12 << 20


@contextmanager
def _collector_off() -> Iterator[None]:
    """Decoding makes millions of objects without a cycle among them: looking for cycles takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keep_freed_memory() -> None:
    """Have the C library keep blocks as large as a chunk of text when they are freed.

    By default glibc maps each block of over 128 kB anew, and every page of it costs a fault: a tenth of the time. It
    stops doing so up to the size of the greatest block that it was given back (mallopt(3), M_MMAP_THRESHOLD), even of
    one that was never touched. Other C libraries lose some microseconds.
    """
    bytes(_KEPT_BYTES)


def find_ingested(path: str) -> CachedTrace | None:
    """The tables of a trace on this machine, if it was read before."""
    if is_url(path):
        return None
    try:
        return Cache().find(trace_key(path))
    except TraceError:
        return None


def ingest_trace(path: str, *, anew: bool = False) -> CachedTrace:
    """The tables of a trace or memory snapshot: from the cache, else read and put there.

    Args:
        anew: forget what the cache has.

    Raises:
        TraceError: the file cannot be read at all, or there is no room for its tables.
        NotATraceError: it holds something else.
    """
    cache, key = Cache(), trace_key(path)
    if anew:
        cache.drop(key)
    found = cache.find(key)
    if found is not None:
        return found
    if path.lower().endswith(SNAPSHOT_SUFFIXES):
        from rankscope.ingest.snapshot import read_snapshot  # hardly any worker needs it

        tables, info = read_snapshot(path)
        with cache.writer(key, path) as writer:
            for name, rows in tables.items():
                writer.write(name, rows)
            return writer.commit(_of_anywhere(info))
    _keep_freed_memory()
    with cache.writer(key, path) as writer, _collector_off():
        trace = read_kineto(path, aside=writer.aside, sink=writer.write)
        if not trace.counts and not trace.metadata.keys() & {"schemaVersion", "deviceProperties", "traceName"}:
            raise NotATraceError(
                "an empty list of events, and nothing else that a profiler writes",
                path=path,
                hint="leave it out, or look at what wrote it",
            )
        return writer.commit(_of_anywhere(describe(trace)))


def _of_anywhere(info: TraceInfo) -> TraceInfo:
    """With a path that another directory's process understands too: the cache is everybody's."""
    return info if is_url(info.path) else replace(info, path=str(Path(info.path).absolute()))

"""The task of a worker: read one trace file, or one memory snapshot, into the cache.

In: a path. Out: its tables in the cache, and its `TraceInfo`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from rankscope.errors import NotATraceError, OtherTraceError, TraceError, without_credentials
from rankscope.ingest.categories import READ, named
from rankscope.ingest.kineto import read_kineto
from rankscope.ingest.source import is_url
from rankscope.ingest.trace_metadata import trace_info
from rankscope.rundir.plurals import counted
from rankscope.store.cache import Cache, CachedTrace
from rankscope.store.key import trace_key
from rankscope.store.objects import Facts
from rankscope.store.trace_info import TraceInfo

# A file with such a name may be a memory snapshot: `read_snapshot` checks its content.
SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
# A few chunks. glibc keeps at most twice as much.
_KEPT_BYTES = 12 << 20


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn garbage collection off: decoding makes millions of objects without cycles, and scanning them takes 10 %."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def _keep_freed_memory() -> None:
    """Make the C library keep freed blocks as large as a chunk of text; once per process.

    By default glibc maps every block of over 128 kB anew, with a fault for each page: 10 % of the time. Freeing a block
    raises that threshold to its size (mallopt(3), M_MMAP_THRESHOLD), even if it was never touched. Other C libraries
    lose a few microseconds.
    """
    bytes(_KEPT_BYTES)


def find_ingested(path: str, facts: Facts | None = None) -> CachedTrace | None:
    """The tables of a trace, if the cache has them.

    Args:
        facts: what identifies an object, from the listing; without them a worker asks for it.
    """
    if is_url(path) and facts is None:
        return None
    try:
        return Cache().find(trace_key(path, facts))
    except TraceError:
        return None


def ingest_trace(path: str, facts: Facts | None = None, *, again: bool = False) -> CachedTrace:
    """The tables of a trace or memory snapshot, from the cache or read now.

    Args:
        facts: what identifies an object, from the listing.
        again: drop what the cache has.

    Raises:
        TraceError: the file cannot be read at all, or its tables cannot be written.
        NotATraceError: it holds something else.
        OtherTraceError: it holds a trace, but no event that is read.
    """
    cached, key = Cache(), trace_key(path, facts)
    if again:
        cached.drop(key)
    elif (found := cached.find(key)) is not None:
        return found
    if path.lower().endswith(SNAPSHOT_SUFFIXES):
        from rankscope.ingest.snapshot import read_snapshot  # few workers need it

        tables, info = read_snapshot(path)
        with cached.writer(key, path) as writer:
            for name, rows in tables.items():
                writer.write(name, rows)
            return writer.commit(_with_absolute_path(info))
    _keep_freed_memory()
    with cached.writer(key, path) as writer, _collector_off():
        trace = read_kineto(path, spool_folder=writer.temporary_folder, sink=writer.write)
        if not trace.counts and not trace.metadata.keys() & {"schemaVersion", "deviceProperties", "traceName"}:
            raise NotATraceError(
                "an empty list of events, and nothing else that a profiler writes",
                path=path,
                hint="leave it out, or check what wrote it",
            )
        info = trace_info(trace)
        account = info.account
        if account.timed and account.unknown_share == 1:
            raise OtherTraceError(
                f"{counted(account.timed, 'timed event')}, none of a category of torch.profiler: "
                f"{named(account.unknown)}",
                path=path,
                hint=f"rankscope reads {READ}",
            )
        return writer.commit(_with_absolute_path(info))


def ingest_again(trace: CachedTrace) -> CachedTrace:
    """The trace with its tables read again; what its run says about it stays.

    Raises: as `ingest_trace`.
    """
    return replace(ingest_trace(trace.info.path, again=True), info=trace.info)


def _with_absolute_path(info: TraceInfo) -> TraceInfo:
    """The metadata with an absolute path: processes in other directories use the same cache."""
    if is_url(info.path):
        return replace(info, path=without_credentials(info.path))
    return replace(info, path=str(Path(info.path).absolute()))

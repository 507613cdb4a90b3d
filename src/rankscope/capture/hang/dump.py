"""Writes down what this rank is doing, for a job that hangs: one JSON file, from any thread.

It has the Python stacks of all threads, the process groups with their counters, torch's Flight Recorder, and the
device. Each part is gathered in a thread of its own with a time limit, since what hangs the job may hang it too: a lock
of the allocator, a driver, a file system. What cannot be had in time is named in the file. Nothing is a collective.

In: where to write, and where the rank is in its step. Out: the file.
"""

from __future__ import annotations

import linecache
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rankscope.capture.environment import device_in_use
from rankscope.capture.graph_capture import queries_beside_capture
from rankscope.capture.hang.exceptions import MAX_TEXT, described, handled_exceptions, uncaught
from rankscope.capture.notices import logger
from rankscope.capture.process import Process, process_groups, this_process
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.hang_dump import (
    DUMP_FORMAT,
    HANG_FOLDER,
    Frame,
    GroupState,
    HangDump,
    ThreadStack,
    dump_name,
)
from rankscope.rundir.processes import pid_namespace

T = TypeVar("T")
_CAPTURE = "rankscope.capture."
_MAX_FRAMES = 200
_MAX_THREADS = 256
_MAX_CALLS = 2000
_LINES_OF = 40
"""Innermost frames of the training thread whose source line is written."""
_STACKS_PER_GROUP = 16
"""Of the finished calls of a group, the latest that keep the stack of their caller."""
_numbers = count()
_latest: dict[Path, int] = {}
"""The number of the latest dump in each file."""


@dataclass(frozen=True)
class Position:
    """Where the rank is in its training loop."""

    step: int | None = None
    phase: str = ""
    """Such as ``data_loading`` or ``forward``."""
    since_step_ns: int | None = None
    """Time since the last step ended."""


@dataclass(frozen=True)
class Watched:
    """What is known of the watched rank."""

    run_id: str = ""
    began_ns: int = 0
    """The wall clock at which its watch began."""
    process: Process | None = None
    """Its place in the job; by default as it is now."""
    exception: str = ""
    """What ended its training loop, if the dump is written for that."""
    signal: str = ""
    """What ends its process, if the dump is written for that."""


def write_hang_dump(
    directory: str | os.PathLike[str],
    reason: str,
    *,
    position: Callable[[], Position] | None = None,
    training_thread: int | None = None,
    watched: Watched = Watched(),  # it cannot change
    limit_s: float = 10.0,
) -> Path | None:
    """Write ``hang/rank{rank}.json`` in a run directory.

    It raises nothing, and returns after a few times ``limit_s`` at most, whatever hangs. It may be called from any
    thread, also several times: the latest dump replaces the one before. Unless the process ends, the stacks of the
    recorded calls are added to the file later, by a thread of their own: torch reads its debug symbols for the first of
    them, which takes seconds.

    Args:
        directory: the run directory.
        reason: why the dump is written, for the reader.
        position: asked for where the rank is in its step.
        training_thread: the ident of the thread that runs the training loop; the main thread by default.
        watched: what is known of this rank.
        limit_s: how long each part may take.

    Returns:
        the file; None if it could not be written in time.
    """
    try:
        dump = _gather(reason, position, training_thread, watched.process, limit_s)
        run_id = watched.run_id or dump.run_id
        uncaught_text = watched.exception or dump.uncaught
        dump = replace(dump, uncaught=uncaught_text, signal=watched.signal, run_id=run_id, began_ns=watched.began_ns)
        path = Path(directory) / HANG_FOLDER / dump_name(dump.rank)
        _, failure = within(limit_s, lambda: write_atomic(path, dump.to_json()))
        if failure:
            logger.warning("the dump of this hang could not be written to %s: %s", path, failure)
            return None
        number = next(_numbers)
        _latest[path] = number
        if dump.flight_recorder and not watched.exception and not watched.signal:
            name = "rankscope-hang-call-stacks"
            threading.Thread(target=_add_call_stacks, args=(path, dump, number), name=name, daemon=True).start()
        return path
    except Exception as error:  # capture never stops a job
        logger.warning("the dump of this hang failed: %s", error)
        return None


def within(limit_s: float, part: Callable[[], T]) -> tuple[T | None, str]:
    """What a function returns, if it does so in time; else None and why not. It may run on in its daemon thread.

    Where no thread can be started any more, it runs in this one, without a limit.
    """
    found: list[T] = []
    failure: list[str] = []

    def run() -> None:
        try:
            found.append(part())
        except BaseException as error:
            failure.append(f"{type(error).__name__}: {error}"[:MAX_TEXT])

    thread = threading.Thread(target=run, name="rankscope-hang-part", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, or the system has no more threads
        run()
    else:
        thread.join(limit_s)
    if found:
        return found[0], ""
    return None, failure[0] if failure else f"no answer within {limit_s:g} s"


def _gather(
    reason: str,
    position: Callable[[], Position] | None,
    training_thread: int | None,
    process: Process | None,
    limit_s: float,
) -> HangDump:
    # The stacks first: they are what the other parts may change.
    threads = stacks(training_thread or threading.main_thread().ident)
    process = process or this_process()[0] or Process(0, 1, None, socket.gethostname(), "", None, 0, None)
    failed: dict[str, str] = {}

    def part(name: str, limit: float, get: Callable[[], T], default: T) -> T:
        value, why = within(limit, get)
        if value is None and why:
            failed[name] = why
        return default if value is None else value

    threads = part("source_lines", min(limit_s, 2.0), lambda: _with_source_lines(threads), threads)
    where = part("position", min(limit_s, 2.0), position or Position, Position())
    no_groups: tuple[GroupState, ...] = ()
    groups = part("groups", limit_s, _groups, no_groups)
    nothing: dict[str, object] = {}
    recorder = part("flight_recorder", limit_s, lambda: flight_recorder(stacks=False), nothing)
    device = part("device", limit_s, device_state, nothing)
    return HangDump(
        format=DUMP_FORMAT,
        rank=process.rank,
        world_size=process.world_size,
        host=process.host,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        run_id=process.known_run_id or "",
        restart_count=process.restart_count,
        time_ns=time.time_ns(),
        reason=reason[:MAX_TEXT],
        step=where.step,
        phase=where.phase[:MAX_TEXT],
        since_step_ns=where.since_step_ns,
        threads=threads,
        uncaught=described(uncaught()),
        groups=groups,
        flight_recorder=recorder,
        device=device,
        failed=failed,
    )


def stacks(training_thread: int | None) -> tuple[ThreadStack, ...]:
    """The Python stacks of all threads but the calling one, the training thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    exceptions = handled_exceptions()
    found = []
    for ident, frame in sys._current_frames().items():
        if ident == own and ident != training_thread:
            continue
        error, trace = exceptions.get(ident, (None, None))
        if ident == own and trace is None:
            trace = getattr(uncaught(), "__traceback__", None)  # at exit it is handled no more
        found.append(
            ThreadStack(
                # The calling thread is here to report its exception: the stack is where that was raised.
                frames=_traceback_frames(trace)
                if ident == own and trace is not None
                else _frames(_interrupted(frame) if ident == own else frame),
                name=names.get(ident, ""),
                id=ident,
                training=ident == training_thread,
                exception=described(error),
                raised_at=_raised_at(trace),
            )
        )
    return tuple(sorted(found, key=lambda stack: not stack.training)[:_MAX_THREADS])


def _add_call_stacks(path: Path, dump: HangDump, number: int) -> None:
    """Write a dump again, with the stacks of its calls, unless there is a newer one."""
    with suppress(Exception):
        frames = {}
        # A recorder may have got its first call since: then this is another one, with calls at other times.
        for recorder in _recorders(flight_recorder(stacks=True)):
            for entry in recorder.get("entries", ()):
                if "frames" in entry:
                    frames[entry["record_id"], entry.get("time_created_ns")] = entry["frames"]
        for recorder in _recorders(dump.flight_recorder):
            for entry in recorder.get("entries", ()):
                if (key := (entry["record_id"], entry.get("time_created_ns"))) in frames:
                    entry["frames"] = frames[key]
        if frames and _latest.get(path) == number:
            write_atomic(path, dump.to_json())


def _recorders(recorder: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """The recorders in what `flight_recorder` returns."""
    several = recorder.get("recorders")
    return several if isinstance(several, list) else [recorder]


def flight_recorder(*, stacks: bool) -> dict[str, object]:
    """The Flight Recorder, as far as this torch has it.

    NCCL and the other backends each have their own, with numbers of its own for calls and groups. If both have calls,
    they are a list: ``{"recorders": […, …]}``.

    Args:
        stacks: with the stacks of the callers.
    """
    native = getattr(torch._C, "_distributed_c10d", None)
    found: list[dict[str, object]] = []
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(native, name, None)
        if dump is not None:
            # A job that captures a graph for long seems to hang. If nothing protects its capture, a dump is worth more.
            with suppress(Exception), queries_beside_capture():
                # Torch's own bytes, from this process: with calls, perhaps with stacks, and not only active ones.
                value = pickle.loads(dump(True, stacks, False))
                if value.get("entries"):
                    found.append(_recorder(value))
    if len(found) > 1:
        return {"recorders": found}
    return found[0] if found else {}


def _recorder(value: Mapping[str, Any]) -> dict[str, object]:
    return {
        "version": str(value.get("version", "")),
        "pg_config": value.get("pg_config", {}),
        "pg_status": {str(number): counts for number, counts in value.get("pg_status", {}).items()},
        "entries": _shortened(value["entries"][-_MAX_CALLS:]),
    }


def _shortened(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries; those of finished calls, but for the latest of each group, without the stack of their caller."""
    kept: dict[str, int] = defaultdict(int)
    found = []
    for entry in reversed(entries):
        group = str(entry.get("process_group", ("",))[0])
        kept[group] += bool(entry.get("retired") or entry.get("state") == "completed")
        is_old = kept[group] > _STACKS_PER_GROUP
        found.append({key: value for key, value in entry.items() if not (is_old and key == "frames")})
    return found[::-1]


def device_state() -> dict[str, object]:
    """Memory and clocks of the device in use; empty without one. Nothing here waits for the device's work."""
    kind = device_in_use()
    if kind is None:
        return {}
    module: Any = getattr(torch, kind)
    index = module.current_device()
    found: dict[str, object] = {"type": kind, "index": index}
    readers: Mapping[str, str] = {
        "allocated_bytes": "memory_allocated",
        "reserved_bytes": "memory_reserved",
        "peak_allocated_bytes": "max_memory_allocated",
        "clock_mhz": "clock_rate",
        "utilization_percent": "utilization",
        "temperature_celsius": "temperature",
        "power_mw": "power_draw",
    }
    with queries_beside_capture():
        for name, reader in readers.items():
            with suppress(Exception):  # it needs a package that is not installed, or this torch lacks it
                found[name] = getattr(module, reader)(index)
        with suppress(Exception):
            found["free_bytes"], found["total_bytes"] = module.mem_get_info(index)
    return found


def _groups() -> tuple[GroupState, ...]:
    counters: dict[str, int] = {}
    if dist.is_available() and dist.is_initialized():
        with suppress(Exception):  # torch has no public list of groups
            for group, name in dist.distributed_c10d._world.pg_names.items():
                with suppress(Exception):  # not every backend counts
                    counter: Any = group  # torch's type stub lacks the method
                    counters[str(name)] = int(counter._get_sequence_number_for_group())
    return tuple(
        GroupState(group.name, group.description, group.ranks, counters.get(group.name), group.backend or "")
        for group in process_groups()
    )


def _interrupted(frame: FrameType | None) -> FrameType | None:
    """Where this thread was before it came to write the dump, as from the handler of a signal."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_CAPTURE):
        frame = frame.f_back
    return frame


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    found: list[Frame] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def _traceback_frames(trace: TracebackType) -> tuple[Frame, ...]:
    """The stack at which an exception was raised, from the frame that handles it on, the innermost first."""
    found = []
    walk = islice(traceback.walk_tb(trace), _MAX_FRAMES)
    for frame, line in walk:
        found.append(Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name))
    return tuple(reversed(found))


def _with_source_lines(threads: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
    """The training thread's frames with their source lines, which may have to be read from a slow file system."""

    def with_lines(stack: ThreadStack) -> ThreadStack:
        inner = tuple(
            replace(frame, text=linecache.getline(frame.file, frame.line).strip()[:MAX_TEXT])
            for frame in stack.frames[:_LINES_OF]
        )
        return replace(stack, frames=inner + stack.frames[_LINES_OF:])

    return tuple(with_lines(stack) if stack.training else stack for stack in threads)


def _raised_at(trace: TracebackType | None) -> Frame | None:
    """The place where an exception was raised."""
    return next(iter(_traceback_frames(trace)), None) if trace is not None else None

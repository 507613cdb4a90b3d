"""ROCm's rocpd: the SQLite database of ``rocprofv3 --output-format rocpd``, as events of a Kineto trace.

Kernels, copies, calls of HIP and HSA, and roctx ranges, from the tables of schema 3, whose names end in the id of the
process. Calls and device events have the same correlation id (`stack_id`). A merged database has several processes. The
rank is that of the process's environment. Ranges called ``step 7`` or ``iteration_7`` are the steps, as in `nsight`.

In: the tables of such a file. Out: the keys and events of a trace.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rankscope.errors import LauncherError, NotATraceError
from rankscope.ingest.event_types import PROFILER_STEP, AnnotationArgs, DeviceArgs, RuntimeArgs
from rankscope.ingest.imported import Timed
from rankscope.ingest.nsight import counted_step, step_word
from rankscope.ingest.sqlite_tables import Database, Process, Translation, range_event, raw, whole
from rankscope.rundir.launcher import Identity, identify

_DISPATCH = "rocpd_kernel_dispatch"
_COPY, _REGION = "rocpd_memory_copy", "rocpd_region"
_SUFFIXED = re.compile(r"rocpd_(?:kernel_dispatch|memory_copy|region)(_\w*)?")
_DIRECTIONS = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "HOST_TO_HOST": "HtoH"}


def reads(database: Database) -> bool:
    """Whether the tables are rocpd's."""
    return any(_SUFFIXED.fullmatch(table) for table in database.tables)


def processes(database: Database) -> list[Process]:
    """The processes, each with tables of its own."""
    suffixes = sorted({match[1] or "" for table in database.tables if (match := _SUFFIXED.fullmatch(table))})
    return [_Process(database, suffix).described() for suffix in suffixes]


def translate(database: Database, process: Process | None) -> Translation:
    """The keys of the trace and its events.

    Raises:
        NotATraceError: the tables are of another version of the schema.
    """
    chosen = _Process(database, "" if process is None else str(process.id))
    for name in (_DISPATCH, _REGION, _COPY):
        columns = database.columns(name + chosen.suffix)
        if columns and "start" not in columns:
            raise NotATraceError(
                f"a rocpd database of an unknown schema: {name} has no column `start`",
                path=database.path,
                hint="rankscope reads schema 3, as rocprofv3 of ROCm 7 writes it",
            )
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": chosen.devices()}
    if (host := chosen.host()) is not None:
        head["host_name"] = host
    return head, chosen.events()


class _Process:
    """The tables of one process."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.suffix = suffix
        self._database = database
        self._strings = database.texts("rocpd_string" + suffix, "id", "string")
        self._pids = self._numbers("rocpd_info_process", "pid")
        self._tids = self._numbers("rocpd_info_thread", "tid")
        self._agents = {
            row["id"]: (row["type"], whole(row["type_index"]))
            for row in self._rows("rocpd_info_agent", "id", "type", "type_index")
        }

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        return (dict(row) for row in self._database.rows(table + self.suffix, *columns))

    def _numbers(self, table: str, column: str) -> dict[Any, int | None]:
        return {row["id"]: whole(row[column]) for row in self._rows(table, "id", column)}

    def host(self) -> str | None:
        """The name of its host."""
        return next(iter(self._database.texts("rocpd_info_node" + self.suffix, "id", "hostname").values()), None)

    def described(self) -> Process:
        """Which process it is."""
        used: Counter[int] = Counter()
        for (agent,), count in self._database.counts(_DISPATCH + self.suffix, "agent_id"):
            used[self._agents.get(agent, (None, None))[1] or 0] += count
        device = max(used, key=lambda each: used[each], default=0)
        pid = next((pid for pid in self._pids.values() if pid is not None), 0)
        place = self._identity()
        order = self.host() or "", device, pid, self.suffix
        return Process(self.suffix, order, used.total(), place.rank, place.world_size)

    def _identity(self) -> Identity:
        """Its place in the job, from its environment."""
        row = next(self._rows("rocpd_info_process", "environment"), {})
        variables = _object(row.get("environment"))
        # The values are untrusted: the one that names a file is not followed.
        texts = {name: value for name, value in variables.items() if isinstance(value, str) and name != "PBS_NODEFILE"}
        try:
            return identify(texts)
        except LauncherError:
            return Identity()

    def devices(self) -> list[dict[str, Any]]:
        """The GPUs."""
        rows = self._rows("rocpd_info_agent", "type", "type_index", "product_name", "name")
        return [
            {
                "id": whole(row["type_index"]),
                "name": next((n for n in (row["product_name"], row["name"]) if n and isinstance(n, str)), ""),
            }
            for row in rows
            if row["type"] == "GPU"
        ]

    def events(self) -> Iterator[Timed]:
        """The events of all tables."""
        # One number an event: what it was called by, and for regions what it is and says.
        called: dict[Any, int | None] = {}
        about: dict[Any, tuple[str, str | None]] = {}
        for row in self._rows("rocpd_event", "id", "stack_id", "category_id", "extdata"):
            called[row["id"]] = whole(row["stack_id"]) or None
            category = self._strings.get(row["category_id"], "")
            about[row["id"]] = category, _message(row["extdata"]) if "MARKER" in category else None
        yield from self._kernels(called)
        yield from self._copies(called)
        yield from self._regions(called, about)

    def _kernels(self, called: dict[Any, int | None]) -> Iterator[Timed]:
        symbols = {
            row["id"]: row["display_name"] or row["kernel_name"]
            for row in self._rows("rocpd_info_kernel_symbol", "id", "display_name", "kernel_name")
        }
        # Streams are recorded only if the application's calls are; otherwise all have the same.
        streams = any(row["stream_id"] for row in self._rows(_DISPATCH, "stream_id"))
        sizes = [f"{name}_size_{axis}" for name in ("grid", "workgroup") for axis in "xyz"]
        columns = ("start", "end", "agent_id", "kernel_id", "queue_id", "stream_id", "group_segment_size", "event_id")
        for row in self._rows(_DISPATCH, *columns, *sizes):
            work, block = ([whole(row[size]) or 0 for size in part] for part in (sizes[:3], sizes[3:]))
            grid = [total // size if size else total for total, size in zip(work, block, strict=True)]
            stream = whole(row["stream_id" if streams else "queue_id"])
            device = self._agents.get(row["agent_id"], (None, None))[1]
            args = DeviceArgs(
                device=device,
                stream=stream,
                correlation=called.get(row["event_id"]),
                grid=raw(grid),
                block=raw(block),
                shared_memory=whole(row["group_segment_size"]),
            )
            yield _on_device("kernel", symbols.get(row["kernel_id"]), row, args)

    def _copies(self, called: dict[Any, int | None]) -> Iterator[Timed]:
        columns = ("start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", "queue_id", "stream_id")
        for row in self._rows(_COPY, *columns, "event_id"):
            written = self._strings.get(row["name_id"], "")
            kind = next((short for long, short in _DIRECTIONS.items() if written.endswith(long)), None)
            ends = [self._agents.get(row[end], (None, None)) for end in ("dst_agent_id", "src_agent_id")]
            device = next((index for kind_, index in ends if kind_ == "GPU"), None)
            stream = whole(row["stream_id"]) or whole(row["queue_id"])
            name = written if kind is None else f"Memcpy {kind}"
            correlation, size = called.get(row["event_id"]), whole(row["size"])
            args = DeviceArgs(device=device, stream=stream, correlation=correlation, bytes=size)
            yield _on_device("gpu_memcpy", name, row, args)

    def _regions(self, called: dict[Any, int | None], about: dict[Any, tuple[str, str | None]]) -> Iterator[Timed]:
        columns = ("start", "end", "name_id", "pid", "tid", "event_id")
        messages = [
            (row["start"], about.get(row["event_id"], ("", None))[1] or "") for row in self._rows(_REGION, *columns)
        ]
        word = None if any(PROFILER_STEP.match(name) for _, name in messages) else step_word(messages)
        for row in self._rows(_REGION, *columns):
            category, message = about.get(row["event_id"], ("", None))
            track = self._pids.get(row["pid"]), self._tids.get(row["tid"])
            name = message or self._strings.get(row["name_id"], "")
            kind = "hip_runtime" if category.startswith("HIP") else "driver" if category.startswith("HSA") else None
            span = row["start"], row["end"]
            if kind is None:
                yield range_event("user_annotation", counted_step(name, word), span, track, AnnotationArgs())
            else:
                yield range_event(kind, name, span, track, RuntimeArgs(correlation=called.get(row["event_id"])))


def _on_device(category: str, name: object, row: dict[str, Any], args: DeviceArgs) -> Timed:
    return range_event(category, name, (row["start"], row["end"]), (args.device, args.stream), args)


def _message(extdata: object) -> str | None:
    """What a marker says."""
    message = _object(extdata).get("message")
    return message if isinstance(message, str) else None


def _object(text: object) -> dict[str, Any]:
    """An object from JSON; empty if it is none."""
    try:
        values = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}

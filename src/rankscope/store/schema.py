"""The tables of a trace: every column with its unit and meaning.

One trace file becomes one set of tables. Times are integer nanoseconds on the trace's clock (exactly its ``ts``,
without ``baseTimeNanoseconds``), sizes are bytes. A row's position in its table is its identity: ``*_row`` columns
point to rows of other tables. Rows are sorted by start. What is not in a trace is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

SCHEMA_VERSION = 13

I64, I32, I16, F32, STR, BOOL = pl.Int64(), pl.Int32(), pl.Int16(), pl.Float32(), pl.String(), pl.Boolean()


@dataclass(frozen=True)
class Column:
    """One column, of a table or of an analysis's result.

    Attributes:
        dtype: its Polars type.
        unit: `ns`, `bytes`, `ratio`, `count`, `GB/s`, …; empty if it has none.
        doc: what it means, for the docs, the page and the reports.
        instant: whether it is a point in time, not a duration: here on the clock of the row's trace file, and on the
            run's clock wherever it is shown (`pipeline.clock`).
    """

    name: str
    dtype: pl.DataType | type[pl.DataType]
    unit: str
    doc: str
    instant: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> pl.Schema:
        """The table's Polars schema, in column order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def empty(self) -> pl.DataFrame:
        """The table without rows."""
        return pl.DataFrame(schema=self.schema)


START = Column("start_ns", I64, "ns", "when it starts, on the trace's clock")
END = Column("end_ns", I64, "ns", "when it ends: start plus duration as written, exactly")
NAME = Column("name", STR, "", "the event's name, as written; empty if it has none")
PID = Column("pid", I64, "", "process id as written (a device's number on device tracks); null if it is not a number")
TID = Column(
    "tid", I64, "", "thread id as written; negative if the file has a text instead, which is in the table `tracks`"
)
EXTERNAL_ID = Column(
    "external_id", I64, "", "`External id`: the host operator it belongs to, by that operator's own id"
)
CORRELATION = Column("correlation", I64, "", "links a device event to the runtime call that launched it")
DEPTH = Column("depth", I16, "", "how many ranges of its thread are open when it starts; 0 at top level")
PARENT = Column("parent_row", I32, "", "row of the innermost enclosing range of this table; null at top level")
SELF = Column("self_ns", I64, "ns", "duration minus that of its direct children in this table")

DEVICE_EVENTS = Table(
    "device_events",
    "One row per kernel, copy or fill on a device.",
    (
        START,
        END,
        NAME,
        Column("kind", STR, "", "`kernel`, `memcpy` or `memset`"),
        Column("device", I64, "", "device index"),
        Column("context", STR, "", "driver context, as written"),
        Column("stream", I64, "", "stream (0 is valid); on XPU the SYCL queue; else the event's track"),
        PID,
        TID,
        CORRELATION,
        EXTERNAL_ID,
        Column("launch_row", I32, "", "row of its launch in `runtime_calls`; null if the launch is not in the file"),
        Column("launch_ns", I64, "ns", "when its launch starts; null without one"),
        Column("op_row", I32, "", "row in `host_ops` of the operator it belongs to, by External id"),
        Column("graph_id", I64, "", "CUDA graph it was launched by"),
        Column("graph_node_id", I64, "", "its node in that graph"),
        Column("grid", STR, "", "launch grid, as JSON"),
        Column("block", STR, "", "launch block, as JSON"),
        Column("registers", I64, "", "registers per thread"),
        Column("shared_memory", I64, "bytes", "shared memory per block"),
        Column("blocks_per_sm", F32, "", "blocks per multiprocessor"),
        Column("warps_per_sm", F32, "", "warps per multiprocessor"),
        Column("occupancy", F32, "%", "estimated achieved occupancy"),
        Column("queued", I64, "", "`queued`, as written"),
        Column("bytes", I64, "bytes", "size of a copy or fill"),
        Column("is_collective", BOOL, "", "whether the event itself has collective metadata"),
    ),
)

HOST_OPS = Table(
    "host_ops",
    "One row per host operator (`cpu_op`).",
    (
        START,
        END,
        NAME,
        PID,
        TID,
        DEPTH,
        PARENT,
        SELF,
        EXTERNAL_ID,
        Column("sequence", I64, "", "autograd sequence number: links a forward operator to its backward"),
        Column("forward_thread", I64, "", "`Fwd thread id`: set on operators of the backward"),
        Column("record_function_id", I64, "", "id of the record function"),
        Column("input_dims", STR, "", "shapes of the inputs, as compact JSON"),
        Column("input_types", STR, "", "types of the inputs, as compact JSON"),
        Column("input_strides", STR, "", "strides of the inputs, as compact JSON"),
        Column("concrete_inputs", STR, "", "values of scalar inputs, as compact JSON"),
        Column("call_stack", STR, "", "Python stack, as written"),
        Column("module_hierarchy", STR, "", "nn.Module path, as written"),
        Column("kernel_name", STR, "", "Triton kernel, on operators of compiled graphs"),
        Column("kernel_backend", STR, "", "what compiled it"),
        Column("kernel_file", STR, "", "path of its source"),
        Column("kernel_hash", STR, "", "its hash"),
        Column("kernel_kwargs", STR, "", "its configuration"),
    ),
)

RUNTIME_CALLS = Table(
    "runtime_calls",
    "One row per call of the host into the device's runtime or driver.",
    (
        START,
        END,
        NAME,
        PID,
        TID,
        CORRELATION,
        EXTERNAL_ID,
        Column("driver", BOOL, "", "whether it is a call of the driver API"),
        Column("cbid", I64, "", "callback id of the call"),
        Column("bytes", I64, "bytes", "size in the call's arguments"),
        Column("stream", I64, "", "stream that the call names"),
        Column("kind", STR, "", "kind of copy that the call names"),
        Column("kernel", STR, "", "kernel that the call names"),
    ),
)

PYTHON_FRAMES = Table(
    "python_frames",
    "One row per call of a Python function (`with_stack`).",
    (
        START,
        END,
        NAME,
        PID,
        TID,
        DEPTH,
        PARENT,
        SELF,
        Column("python_id", I64, "", "the call's id"),
        Column("python_parent_id", I64, "", "id of the calling function's call"),
        Column("python_module_id", I64, "", "which nn.Module instance of this class it belongs to"),
        Column("python_thread", I64, "", "Python thread"),
        Column("finished", BOOL, "", "false if recording ended before the call did"),
    ),
)

ANNOTATIONS = Table(
    "annotations",
    "One row per named range: `ProfilerStep#N`, `record_function`, `gloo:*`, `nccl:*`, `Python GC`, FSDP's and DDP's.",
    (
        START,
        END,
        NAME,
        PID,
        TID,
        Column("on_device", BOOL, "", "true for the copy of a host range on a device's track"),
        Column("step", I64, "", "N of a host `ProfilerStep#N`; null if the step is incomplete"),
        Column("incomplete_step", I64, "", "N of a host `ProfilerStep#N` that holds no iteration"),
        DEPTH,
        PARENT,
        SELF,
        EXTERNAL_ID,
        Column("input_dims", STR, "", "shapes of the inputs, as compact JSON"),
        Column("input_types", STR, "", "types of the inputs, as compact JSON"),
        Column("concrete_inputs", STR, "", "values of scalar inputs, as compact JSON"),
    ),
)

MEMORY_EVENTS = Table(
    "memory_events",
    "One row per allocation or release (`profile_memory`).",
    (
        Column("time_ns", I64, "ns", "when, on the trace's clock"),
        PID,
        TID,
        Column("address", I64, "", "address; null if not recorded"),
        Column("bytes", I64, "bytes", "allocated if positive, released if negative"),
        Column("device_type", I64, "", "c10 device type: 0 CPU, 1 CUDA, 12 XPU"),
        Column("device", I64, "", "device index, −1 for the host"),
        Column("total_allocated", I64, "bytes", "allocated on the device after this"),
        Column("total_reserved", I64, "bytes", "reserved on the device after this"),
    ),
)

COLLECTIVES = Table(
    "collectives",
    "One row per event with collective metadata: kernels, `record_param_comms` on the host, and Gloo's ranges of calls "
    "that rankscope recorded.",
    (
        Column("source", STR, "", "`device_events`, `host_ops` or `annotations`: the table that `row` refers to"),
        Column("row", I32, "", "row of the event there"),
        EXTERNAL_ID,
        Column("collective", STR, "", "`Collective name`, as written"),
        Column("dtype", STR, "", "element type, as written"),
        Column("in_elements", I64, "elements", "elements in"),
        Column("out_elements", I64, "elements", "elements out"),
        Column("in_split", STR, "", "`In split size`, as written"),
        Column("out_split", STR, "", "`Out split size`, as written"),
        Column("group_name", STR, "", "`Process Group Name` (`Process Group ID` in older files)"),
        Column("group_description", STR, "", "`Process Group Description`"),
        Column("group_ranks", STR, "", "`Process Group Ranks`, as written"),
        Column("group_size", I64, "ranks", "`Group size`"),
        Column("group_rank", I64, "", "`Rank`: the writer's rank in the group"),
        Column("sequence", I64, "", "`Seq`: the group's count of its collectives, if recorded"),
        Column("source_rank", I64, "", "`Src Rank` of a point-to-point operation"),
        Column("destination_rank", I64, "", "`Dst Rank` of a point-to-point operation"),
    ),
)

COUNTERS = Table(
    "counters",
    "One row per counter sample (`ph` C).",
    (Column("time_ns", I64, "ns", "when, on the trace's clock"), NAME, PID, TID, Column("values", STR, "", "JSON")),
)

FLOWS = Table(
    "flows",
    "One row per end of an arrow: `fwdbwd` (a forward operator to its backward), `ac2g` (a launch to its kernel).",
    (
        Column("time_ns", I64, "ns", "when, on the trace's clock"),
        Column("category", STR, "", "which kind of arrow"),
        Column("phase", STR, "", "`s` at its start, `t` at a step, `f` at its end"),
        Column("id", I64, "", "the arrow's id within its category"),
        PID,
        TID,
    ),
)

TRACKS = Table(
    "tracks",
    "One row per metadata event, which names a process or a thread.",
    (
        PID,
        TID,
        Column("field", STR, "", "`process_name`, `process_labels`, `process_sort_index`, `thread_name`, …"),
        Column("value", STR, "", "its value"),
    ),
)

OTHER_EVENTS = Table(
    "other_events",
    "One row per event of any other kind (synchronization, profiler overhead, spans, marks), with its arguments.",
    (
        START,
        END,
        Column("phase", STR, "", "`ph`, as written"),
        Column("category", STR, "", "`cat`, as written"),
        NAME,
        PID,
        TID,
        Column("id", I64, "", "the event's id, if it has one"),
        Column("args", STR, "", "its arguments as JSON"),
    ),
)

SNAPSHOT_SEGMENTS = Table(
    "snapshot_segments",
    "One row per segment that a device's allocator held when a memory snapshot was taken.",
    (
        Column("device", I64, "", "device index"),
        Column("address", I64, "", "start address"),
        Column("bytes", I64, "bytes", "its size (reserved memory)"),
        Column("allocated", I64, "bytes", "bytes in use"),
        Column("active", I64, "bytes", "in use, or freed and still needed by a stream"),
        Column("stream", I64, "", "its stream"),
        Column("type", STR, "", "`large` or `small`"),
        Column("pool", STR, "", "private pool (CUDA graphs); null for the allocator's own"),
        Column("expandable", BOOL, "", "whether it can grow"),
        Column("stack", STR, "", "stack that made it, one frame per line, innermost first"),
    ),
)

SNAPSHOT_BLOCKS = Table(
    "snapshot_blocks",
    "One row per block of a segment, used or free, when a memory snapshot was taken.",
    (
        Column("segment_row", I32, "", "its segment's row in `snapshot_segments`"),
        Column("device", I64, "", "device index"),
        Column("address", I64, "", "start address"),
        Column("bytes", I64, "bytes", "its size"),
        Column("requested", I64, "bytes", "requested size; null if not recorded"),
        Column("state", STR, "", "`active_allocated`, `active_pending_free`, `inactive`, as written"),
        Column("stack", STR, "", "stack that allocated it, one frame per line, innermost first"),
    ),
)

SNAPSHOT_EVENTS = Table(
    "snapshot_events",
    "One row per event of a memory snapshot's history (`_record_memory_history`).",
    (
        Column("device", I64, "", "device index"),
        Column("number", I64, "", "its index in the device's history"),
        Column("time_us", I64, "µs", "time since 1970 or since the machine's start; null if not recorded"),
        Column("action", STR, "", "`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `oom`, …, as written"),
        Column("address", I64, "", "address"),
        Column("bytes", I64, "bytes", "size"),
        Column("stream", I64, "", "stream"),
        Column("stack", STR, "", "stack of the event, one frame per line, innermost first"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        DEVICE_EVENTS,
        HOST_OPS,
        RUNTIME_CALLS,
        PYTHON_FRAMES,
        ANNOTATIONS,
        MEMORY_EVENTS,
        COLLECTIVES,
        COUNTERS,
        FLOWS,
        TRACKS,
        OTHER_EVENTS,
        SNAPSHOT_SEGMENTS,
        SNAPSHOT_BLOCKS,
        SNAPSHOT_EVENTS,
    )
}

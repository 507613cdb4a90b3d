"""Devices of each rank: host, model, memory, multiprocessors.

One row per rank and device with events in its traces; a rank without one has a single row without a device. Device
properties come from the profiler's list (`deviceProperties`), the host's name from the trace's metadata; null if not
recorded. It is the device table of the TensorBoard plugin's Distributed view.

    capability  = CUDA's compute capability, on AMD the number of the architecture (9.4 is gfx94x)

How to read it: ranks of one job should have the same model and capability; two ranks on one device of a host, or a rank
on several devices, are usually a mistake of the launcher. Processes that share a device take turns on it: the turns of
the others count as its idle time, also after synchronizing calls and late launches, and a collective does not end at
one time on the ranks (`clock`). `peak_tflops` is the vendor's dense figure for bfloat16, if the model is known;
`operators` computes MFU from it.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.device_peaks import peak_flops
from rankscope.results import Analysis, Column, Inputs, Tables, schema_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("host", pl.String, "", "the host's name"),
    Column("local_rank", pl.Int64, "", "local rank on its host"),
    Column("device", pl.Int64, "", "device index; null if the trace has no device"),
    Column("name", pl.String, "", "the device's model"),
    Column("memory", pl.Int64, "bytes", "the device's memory"),
    Column(
        "multiprocessors",
        pl.Int64,
        "count",
        "number of multiprocessors (on AMD compute units, on Intel vector engines)",
    ),
    Column("capability", pl.String, "", "compute capability"),
    Column("peak_tflops", pl.Float64, "TFLOP/s", "peak rate in bfloat16; in float16 if it has no bfloat16"),
    Column("backend", pl.String, "", "the communication backend recorded in the trace"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The devices of a rank."""
    known = {device.get("id"): device for info in inputs.traces for device in info.devices}
    rows = []
    recorded_indices: list[int | None] = tables["device_events"]["device"].unique().sort().to_list()
    indices: list[int | None] = [index for index in recorded_indices if index is not None]
    # Events without a device index still belong to a device: one row without an index if no event has one.
    for index in indices or [None]:
        properties = known.get(index, {}) if index is not None else {}
        compute = [part for part in properties.get("compute", ()) if part is not None]
        name = properties.get("name") or None
        peak = peak_flops(name, "bfloat16") or peak_flops(name, "float16")
        rows.append(
            {
                "rank": inputs.rank,
                "host": next((info.host for info in inputs.traces if info.host), None),
                "local_rank": next((info.local_rank for info in inputs.traces if info.local_rank is not None), None),
                "device": index,
                "name": name,
                "memory": properties.get("total_memory"),
                "multiprocessors": properties.get("multiprocessors"),
                "capability": ".".join(str(part) for part in compute) or None,
                "peak_tflops": None if peak is None else peak / 1e12,
                "backend": next((info.backend for info in inputs.traces if info.backend), None),
            }
        )
    return pl.DataFrame(rows, schema=schema_of(COLUMNS), strict=False)


analysis = Analysis(
    name="devices", doc=__doc__, columns=COLUMNS, per_rank=per_rank, reads={"device_events": ("device",)}
)

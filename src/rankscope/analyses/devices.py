"""Which devices each rank ran on: host, model, memory, multiprocessors.

One row per rank and device that did anything in its traces; a rank that used none has one row without a device. What a
device is comes from the profiler's own list (`deviceProperties`), what a host is called from the trace's metadata; null
where the file does not say. It is the table of the old TensorBoard plugin's Distributed view.

    capability  = CUDA's compute capability, on AMD the number of the architecture (9.4 is gfx94x)

How to read it: ranks of one job should show one model and one capability; two ranks on one device of a host, or a rank
on several devices, are mostly mistakes of the launcher. `peak_tflops` is the vendor's dense figure for bfloat16, where
the model is known, which `operators` measures against.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.device_peaks import peak_flops
from rankscope.results import Analysis, Column, Inputs, Tables, schema_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("host", pl.String, "", "the host's name"),
    Column("local_rank", pl.Int64, "", "the rank's number on its host"),
    Column("device", pl.Int64, "", "the device's index; null where the trace has no device"),
    Column("name", pl.String, "", "its model"),
    Column("memory", pl.Int64, "bytes", "its memory"),
    Column("multiprocessors", pl.Int64, "count", "its multiprocessors (on AMD compute units, on Intel vector engines)"),
    Column("capability", pl.String, "", "its compute capability"),
    Column("peak_tflops", pl.Float64, "TFLOP/s", "what it does at most in bfloat16; float16 where it has none"),
    Column("backend", pl.String, "", "the communication backend that the trace names"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The devices of a rank."""
    known = {each.get("id"): each for info in inputs.traces for each in info.devices}
    rows = []
    used: list[int | None] = tables["device_events"]["device"].unique().sort().to_list()
    known_indices: list[int | None] = [each for each in used if each is not None]
    # An event without a device's number is of some device all the same, if no other tells of which.
    for index in known_indices or [None]:
        told = known.get(index, {}) if index is not None else {}
        compute = [part for part in told.get("compute", ()) if part is not None]
        name = told.get("name") or None
        peak = peak_flops(name, "bfloat16") or peak_flops(name, "float16")
        rows.append(
            {
                "rank": inputs.rank,
                "host": next((info.host for info in inputs.traces if info.host), None),
                "local_rank": next((info.local_rank for info in inputs.traces if info.local_rank is not None), None),
                "device": index,
                "name": name,
                "memory": told.get("total_memory"),
                "multiprocessors": told.get("multiprocessors"),
                "capability": ".".join(str(part) for part in compute) or None,
                "peak_tflops": None if peak is None else peak / 1e12,
                "backend": next((info.backend for info in inputs.traces if info.backend), None),
            }
        )
    return pl.DataFrame(rows, schema=schema_of(COLUMNS), strict=False)


analysis = Analysis(
    name="devices",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={"device_events": ("device",)},
)

"""Reading traces: CPU seconds against msgspec's decoding alone and against HTA's load; peak memory per byte of JSON.

- ours: `ingest_trace`, from the compressed file to finished tables with every column, zstd Parquet written.
- decode: msgspec decoding the same (decompressed) text into structs that hold the same fields, and nothing else.
- HTA: `TraceAnalysis(trace_files={0: file})` of HolisticTraceAnalysis, in an environment of its own.
"""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path

from benchmarks.peers import HTA, TRACES, environment
from benchmarks.timing import best, interleaved

FILES = (
    "modded-nanogpt-h100-8ranks/Baseline_-_12-11_-_e049e-rank0-chrome-trace.json.gz",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem.rank0.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
)

_OURS = """
import os, tempfile
from rankscope.ingest.task import ingest_trace
def work():
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RANKSCOPE_CACHE"] = cache
        ingest_trace({path!r})
"""
_DECODE = """
import gzip, msgspec
from rankscope.ingest import events as ev
fields = {{}}
for kind in (ev.DeviceArgs, ev.CollectiveArgs, ev.OperatorArgs, ev.RuntimeArgs, ev.FrameArgs, ev.AnnotationArgs,
             ev.MemoryArgs, ev.TrackArgs):
    for field in msgspec.structs.fields(kind):
        fields[field.encode_name] = field.type
args = msgspec.defstruct("Args", [
    (f"f{{i}}", object if False else (t | None if t is not msgspec.Raw else t),
     msgspec.field(name=n, default=msgspec.Raw() if t is msgspec.Raw else None))
    for i, (n, t) in enumerate(fields.items())], gc=False)
event = msgspec.defstruct("Event", [("ph", str | None, None), ("cat", str | None, None), ("name", str | None, None),
    ("ts", float | None, None), ("dur", float | None, None), ("pid", int | str | None, None),
    ("tid", int | str | None, None), ("id", int | str | None, None), ("args", args | None, None)], gc=False)
trace = msgspec.defstruct("Trace", [("traceEvents", list[event])])
decoder = msgspec.json.Decoder(trace, strict=False)
text = gzip.decompress(open({path!r}, "rb").read())
def work():
    decoder.decode(text)
"""
_HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def work():
    TraceAnalysis(trace_files={{0: {path!r}}}, trace_dir="")
"""


def main() -> None:
    if not TRACES.exists():
        print("the real traces are not here: nothing to measure", file=sys.stderr)
        return
    hta = environment("hta", HTA)
    print(f"{'trace':44} {'MB':>6} {'ours MB/s':>10} {'of decode':>10} {'× HTA':>7} {'peak/JSON':>10}")
    shares, factors = [], []
    for name in FILES:
        path = TRACES / name
        size = len(gzip.decompress(path.read_bytes()))
        snippets: dict[str, tuple[str, Path | str]] = {
            "ours": (_OURS.format(path=str(path)), sys.executable),
            "decode": (_DECODE.format(path=str(path)), sys.executable),
        }
        if hta is not None:
            snippets["hta"] = (_HTA.format(path=str(path)), hta)
        found = interleaved(snippets)
        ours, decode = best(found["ours"]), best(found["decode"])
        shares.append(decode / ours)
        factor = best(found["hta"]) / ours if hta is not None else math.nan
        factors.append(factor)
        peak = max(run.peak for run in found["ours"]) / size
        print(
            f"{name[-44:]:44} {size / 1e6:6.1f} {size / 1e6 / ours:10.0f} {decode / ours:10.2f} {factor:7.1f}"
            f" {peak:10.1f}",
            flush=True,
        )
    print(
        f"{'geometric mean':44} {'':6} {'':10} {math.prod(shares) ** (1 / len(shares)):10.2f} "
        f"{math.prod(factors) ** (1 / len(factors)):7.1f}"
    )

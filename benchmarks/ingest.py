"""Reading traces: CPU seconds against msgspec's decoding alone and against HTA's load; peak memory per byte of JSON.

- ours: `ingest_trace`, from the compressed file to finished tables with every column, zstd Parquet written.
- decode: msgspec decoding the same (decompressed) text into structs that hold the same fields, and nothing else.
- HTA: `TraceAnalysis(trace_files={0: file})` of HolisticTraceAnalysis, in an environment of its own: as it comes, which
  takes a default list of arguments, and with the longest list that it has (`ARGS_COMPLETE`), which is nearer to ours.
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
DECODE = """
import gzip, msgspec
from rankscope.ingest import event_types as ev
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
from hta.configs.parser_config import ParserConfig
from hta.trace_analysis import TraceAnalysis
if {complete}:
    ParserConfig.set_default_cfg(ParserConfig(args=list(ParserConfig.ARGS_COMPLETE)))
def work():
    TraceAnalysis(trace_files={{0: {path!r}}}, trace_dir="")
"""


def main() -> None:
    if not TRACES.exists():
        print("the real traces are not here: nothing to measure", file=sys.stderr)
        return
    hta = environment("hta", HTA)
    print(
        f"{'trace':44} {'MB':>6} {'ours MB/s':>10} {'of decode':>10} {'× HTA':>7} {'× complete':>11} {'peak/JSON':>10}"
    )
    ratios: dict[str, list[float]] = {"decode": [], "hta": [], "complete": []}
    for name in FILES:
        path = TRACES / name
        size = len(gzip.decompress(path.read_bytes()))
        snippets: dict[str, tuple[str, Path | str]] = {
            "ours": (_OURS.format(path=str(path)), sys.executable),
            "decode": (DECODE.format(path=str(path)), sys.executable),
        }
        if hta is not None:
            snippets["hta"] = (_HTA.format(path=str(path), complete=False), hta)
            snippets["complete"] = (_HTA.format(path=str(path), complete=True), hta)
        found = interleaved(snippets)
        ours = best(found["ours"])
        own = {each: best(found[each]) / ours if each in found else math.nan for each in ratios}
        for each, ratio in own.items():
            ratios[each].append(ratio)
        peak = max(run.peak for run in found["ours"]) / size
        print(
            f"{name[-44:]:44} {size / 1e6:6.1f} {size / 1e6 / ours:10.0f} {own['decode']:10.2f} {own['hta']:7.1f}"
            f" {own['complete']:11.1f} {peak:10.1f}",
            flush=True,
        )
    means = {each: math.prod(found) ** (1 / len(found)) for each, found in ratios.items()}
    print(f"{'geometric mean':44} {'':6} {'':10} {means['decode']:10.2f} {means['hta']:7.1f} {means['complete']:11.1f}")

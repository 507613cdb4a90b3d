"""Reading traces: CPU seconds against msgspec's decoding alone and against HTA's load; peak memory per byte of JSON.

- ours: `ingest_trace`, from the compressed file to finished tables with every column, zstd Parquet written; with the
  compiled reader, and with the Python reader.
- decode: msgspec decoding the same (decompressed) text into structs that hold the same fields, and nothing else.
- HTA: `TraceAnalysis(trace_files={0: file})` of HolisticTraceAnalysis, in an environment of its own: as it comes, which
  takes a default list of arguments, and with the longest list that it has (`ARGS_COMPLETE`), which is nearer to ours.
"""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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

# Simulated ranks, which stand for the small files of long runs: their layers, and so about 0.7 and 3 MB.
LAYERS = (4, 20)

_OURS = """
import os, tempfile
os.environ["RANKSCOPE_READER"] = {reader!r}
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
        f"{'trace':34} {'MB':>5} {'MB/s':>5} {'Python':>7} {'of decode':>10} {'Python':>7} {'× HTA':>6}"
        f" {'× complete':>11} {'peak MB':>8} {'Python':>7}"
    )
    ratios: dict[str, list[float]] = {"decode": [], "python": [], "hta": [], "complete": []}
    with tempfile.TemporaryDirectory() as folder:
        for path in [*(TRACES / name for name in FILES), *_simulated(Path(folder))]:
            own = _compare(path, hta)
            if TRACES in path.parents:
                for each, ratio in own.items():
                    ratios[each].append(ratio)
    means = {each: math.prod(found) ** (1 / len(found)) for each, found in ratios.items()}
    print(
        f"{'geometric mean of the real ones':34} {'':5} {'':5} {'':7} {means['decode']:10.2f} {means['python']:7.2f}"
        f" {means['hta']:6.1f} {means['complete']:11.1f}"
    )


def _compare(path: Path, hta: Path | None) -> dict[str, float]:
    """Measure one trace and print its line; what others need, as multiples of what the compiled reader needs."""
    size = len(gzip.decompress(path.read_bytes()))
    snippets: dict[str, tuple[str, Path | str]] = {
        "native": (_OURS.format(path=str(path), reader="native"), sys.executable),
        "reference": (_OURS.format(path=str(path), reader="python"), sys.executable),
        "decode": (DECODE.format(path=str(path)), sys.executable),
    }
    if hta is not None:
        snippets["hta"] = (_HTA.format(path=str(path), complete=False), hta)
        snippets["complete"] = (_HTA.format(path=str(path), complete=True), hta)
    found = interleaved(snippets)
    ours, reference, decode = (best(found[name]) for name in ("native", "reference", "decode"))
    others = {name: best(found[name]) / ours if name in found else math.nan for name in ("hta", "complete")}
    peaks = [max(run.peak for run in found[name]) / 1e6 for name in ("native", "reference")]
    print(
        f"{path.as_posix()[-34:]:34} {size / 1e6:5.1f} {size / 1e6 / ours:5.0f} {size / 1e6 / reference:7.0f}"
        f" {decode / ours:10.2f} {decode / reference:7.2f} {others['hta']:6.1f} {others['complete']:11.1f}"
        f" {peaks[0]:8.0f} {peaks[1]:7.0f}",
        flush=True,
    )
    return {"decode": decode / ours, "python": decode / reference, **others}


def _simulated(folder: Path) -> Iterator[Path]:
    for layers in LAYERS:
        run = folder / f"simulated-{layers}-layers"
        command = [sys.executable, "-m", "rankscope", "simulate", str(run), "--ranks", "2", "--layers", str(layers)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield next(run.glob("rank0*.json.gz"))

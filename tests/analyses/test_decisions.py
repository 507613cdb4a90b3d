"""The figures of docs/numbers.md: on real traces, read from the JSON text in plain Python."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests import plain_reading
from tests.plain_reading import Event, Plain, Span, sweep

import rankscope

pytestmark = pytest.mark.usefixtures("shared_cache")

H100 = "modded-nanogpt-h100-8ranks"
LAUNCHLESS = {
    f"{H100}/*rank0-*": 354,
    f"{H100}/*rank3-*": 814,
    f"{H100}/*rank7-*": 1041,
    "torchrec/all-to-all-4ranks/*29220*": 93,
    "torchrec/all-to-all-4ranks/*29222*": 74,
    "tracelens/mi300/resnet_act_checkpoint.json.gz": 968,
}
EVEN = ["ddp_gpt_minimal", "ddp_gpt_shapes", "fsdp2_gpt_shapes", "ddp_resnet_shapes_stack_mem_flops"]


def one(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def length(spans: list[Span]) -> int:
    return sweep([spans])[frozenset((0,))]


@pytest.mark.parametrize("pattern", LAUNCHLESS)
def test_launchless_events_come_before_the_first_launched_one_of_their_stream(
    shared_traces: Path, pattern: str
) -> None:
    trace = plain_reading.read(one(shared_traces, pattern))
    first: dict[object, int] = {}
    for event in trace.device:
        if event.launch is not None:
            first.setdefault(plain_reading.stream_of(event), event.start)
    launchless = [event for event in trace.device if event.launch is None]
    assert len(launchless) == LAUNCHLESS[pattern]
    assert all(event.start < first[plain_reading.stream_of(event)] for event in launchless)


def around(event: Event, gloo: list[Event]) -> bool:
    return any(g.thread == event.thread and g.start <= event.start < g.end for g in gloo)


def readings(trace: Plain) -> tuple[int, int, int, int]:
    """Communication; compute of threads without Gloo, outside its ranges, and of all top-level operators, in 10 µs."""
    gloo = [event for event in [*trace.named, *trace.operators] if event.name.startswith("gloo:")]
    threads = {event.thread for event in gloo}
    top = [event for event in trace.operators if event.depth == 0 and not event.name.startswith("gloo:")]
    found = (
        length([event.span for event in gloo]),
        length([event.span for event in top if event.thread not in threads]),
        length([event.span for event in top if not around(event, gloo)]),
        length([event.span for event in top]),
    )
    a, b, c, d = (round(value / 10_000) for value in found)
    return a, b, c, d


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ddp_gpt_all_collectives_shapes.rank0", (4640, 0, 7991, 8010)),
        ("ddp_gpt_all_collectives_shapes.rank1", (5767, 0, 7815, 7839)),
        ("fsdp2_gpt_shapes.rank0", (6568, 17981, 17981, 18175)),
        ("ddp_gpt_shapes.rank0", (5406, 10420, 10420, 10420)),
    ],
)
def test_compute_of_gloo_jobs_by_three_rules(
    shared_traces: Path, name: str, expected: tuple[int, int, int, int]
) -> None:
    path = shared_traces / "gloo-2ranks" / f"{name}.json.gz"
    assert readings(plain_reading.read(path)) == expected
    row = rankscope.open(path, executor="serial").device_time().row(0, named=True)
    assert (round(row["communication_ns"] / 10_000), round(row["compute_ns"] / 10_000)) == (expected[0], expected[2])


def test_what_c10d_operators_add_to_the_compute_of_an_fsdp_job(shared_traces: Path) -> None:
    trace = plain_reading.read(shared_traces / "gloo-2ranks" / "fsdp2_gpt_shapes.rank0.json.gz")
    gloo = [event for event in trace.named if event.name.startswith("gloo:")]
    calls = [e.span for e in trace.operators if e.depth == 0 and e.name.startswith("c10d") and not around(e, gloo)]
    lasted = sweep([calls, [event.span for event in gloo]])
    assert round(length(calls) / 100_000) == 95
    assert round(lasted[frozenset((0, 1))] / 100_000) == 82


@pytest.mark.slow
def test_hosts_steps_alone_would_misstate_the_first_step_of_the_h100_set(shared_traces: Path) -> None:
    ours, naive = [], []
    for path in sorted((shared_traces / H100).iterdir()):
        trace = plain_reading.read(path)
        _, begin, end = plain_reading.windows(trace)[0]
        ours.append((end - begin) / 1e6)
        _, start, finish = min(trace.steps, key=lambda step: step[1])
        naive.append((finish - start) / 1e6)
    assert (round(min(ours), 2), round(max(ours), 2)) == (36.06, 36.61)
    assert (round(min(naive), 1), round(max(naive), 1)) == (36.7, 50.7)


@pytest.mark.parametrize("name", EVEN)
def test_ranks_of_which_none_was_made_late_are_even(shared_traces: Path, name: str) -> None:
    run = rankscope.open(str(shared_traces / "gloo-2ranks" / f"{name}.rank*"), executor="serial")
    row = run.overview().row(0, named=True)
    assert row["slowest_margin_ns"] < 0.05 * row["step_ns"]


def test_a_thousand_times_the_float_is_not_the_nanoseconds(shared_traces: Path) -> None:
    path = shared_traces / "hta" / "nccl_parser_config" / "nccl_data.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)["traceEvents"]
    stamps = [event["ts"] for event in events if isinstance(event.get("ts"), str)]
    wrong = [text for text in stamps if round(float(text) * 1000.0) != int(text.replace(".", ""))]
    assert (len(wrong), len(events)) == (9779, 40573)

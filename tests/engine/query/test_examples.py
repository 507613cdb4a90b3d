"""Every documented query against plain Python over the events that the traces were written from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.reference import rank_events
from tests.kineto import Event, frame, launch, write_ranks

from rankscope.engine.pipeline import Run, open_run
from rankscope.engine.query.examples import EXAMPLES

Rows = list[tuple[Any, ...]]
RANKS = (0, 1)
DEVICE = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


def events_of(rank: int) -> list[Event]:
    """The reference run, in which each rank also waits for its device and has Python frames."""
    more = [launch(1900 + 1000 * step, 30 + rank, name="cudaStreamSynchronize") for step in (0, 1)]
    more += [frame("train.py(7): step", 1000, 900), frame("train.py(3): forward", 1100, 200)]
    return [*rank_events(rank), *more]


EVENTS = {rank: events_of(rank) for rank in RANKS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("queries-cache")))
        folder = write_ranks(tmp_path_factory.mktemp("queries") / "run", EVENTS)
        yield open_run(folder, executor="serial").load()


def ns(microseconds: float) -> int:
    return round(1000 * microseconds)


ORIGIN = min(ns(event["ts"]) for own in EVENTS.values() for event in own if "ts" in event)
"""The run's first event: instants count from it. The ranks have one clock."""


def start(event: Event) -> int:
    return ns(event["ts"]) - ORIGIN


def duration(event: Event) -> int:
    return ns(event["dur"])


def end(event: Event) -> int:
    return start(event) + duration(event)


def of(*categories: str) -> list[tuple[int, Event]]:
    return [(rank, event) for rank in RANKS for event in EVENTS[rank] if event.get("cat") in categories]


def grouped(
    pairs: Iterable[tuple[int, Event]], key: Callable[[int, Event], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Event]]:
    found: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for rank, event in pairs:
        found[key(rank, event)].append(event)
    return found


def total(events: list[Event]) -> int:
    return sum(map(duration, events))


def launched_by(rank: int, event: Event) -> Event | None:
    correlation = event["args"].get("correlation")
    calls = [e for e in EVENTS[rank] if e.get("cat") == "cuda_runtime" and correlation is not None]
    return next((call for call in calls if call["args"].get("correlation") == correlation), None)


def longest_kernels() -> Rows:
    rows = [(rank, e["name"], start(e), end(e), duration(e)) for rank, e in of("kernel")]
    return sorted(rows, key=lambda row: (-row[4], row[0], row[2]))[:20]


def kernels_by_name() -> Rows:
    rows = [
        (name, len(events), total(events), max(map(duration, events)))
        for (name,), events in grouped(of("kernel"), lambda rank, e: (e["name"],)).items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def events_by_rank() -> Rows:
    by = grouped(of(*DEVICE), lambda rank, e: (rank, DEVICE[e["cat"]]))
    return sorted((*key, len(events), total(events)) for key, events in by.items())


def streams() -> Rows:
    by = grouped(of(*DEVICE), lambda rank, e: (rank, e["args"]["device"], e["args"]["stream"]))
    return sorted((*key, len(events), min(map(start, events)), max(map(end, events))) for key, events in by.items())


def slow_on_one_rank() -> Rows:
    everywhere = grouped(of("kernel"), lambda rank, e: (e["name"],))
    rows = []
    for (rank, name), events in grouped(of("kernel"), lambda rank, e: (rank, e["name"])).items():
        own, overall = total(events) / len(events), total(everywhere[(name,)]) / len(everywhere[(name,)])
        rows.append((rank, name, own, overall, own / overall))
    return sorted(rows, key=lambda row: (-row[4], row[0], row[1]))


def launch_latency() -> Rows:
    rows = []
    for rank in RANKS:
        pairs = [(e, launched_by(rank, e)) for r, e in of(*DEVICE) if r == rank]
        delays = [start(e) - start(call) for e, call in pairs if call is not None]
        rows.append((rank, len(delays), sum(delays) / len(delays), max(delays)))
    return rows


def launch_calls() -> Rows:
    rows = [
        (rank, e["name"], call["name"], start(e), end(e), start(e) - end(call))
        for rank, e in of(*DEVICE)
        if (call := launched_by(rank, e)) is not None
    ]
    return sorted(rows, key=lambda row: (-row[5], row[0], row[3]))[:20]


def operators_by_device_time() -> Rows:
    by: dict[str, list[Event]] = defaultdict(list)
    for rank, e in of(*DEVICE):
        wanted = e["args"].get("External id")
        operators = [op for op in EVENTS[rank] if op.get("cat") == "cpu_op" and wanted is not None]
        for op in (op for op in operators if op["args"].get("External id") == wanted):
            by[op["name"]].append(e)
    rows = [(name, len(events), total(events)) for name, events in by.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def shapes_of_matrix_products() -> Rows:
    products = [(rank, e) for rank, e in of("cpu_op") if e["name"] in ("aten::mm", "aten::addmm", "aten::bmm")]
    by = grouped(products, lambda rank, e: (e["name"], str(e["args"]["Input Dims"]).replace(" ", "")))
    return sorted(((*key, len(events), total(events)) for key, events in by.items()), key=lambda row: (-row[2], row))


def host_threads() -> Rows:
    rows = []
    for (rank, tid), events in grouped(of("cpu_op"), lambda rank, e: (rank, e["tid"])).items():
        top = [e for e in events if not any(o is not e and start(o) <= start(e) and end(e) <= end(o) for o in events)]
        rows.append((rank, tid, len(top), total(top)))
    return sorted(rows, key=lambda row: (row[0], -row[3], row[1]))


def python_self_time() -> Rows:
    # `forward` is inside `step`: 900 − 200 µs of its own, on each of two ranks.
    return [("train.py(7): step", 2, 1_400_000), ("train.py(3): forward", 2, 400_000)]


def synchronizations() -> Rows:
    # Two calls of 30 µs on rank 0, of 31 µs on rank 1.
    return [(1, "cudaStreamSynchronize", 2, 62_000), (0, "cudaStreamSynchronize", 2, 60_000)]


def copies() -> Rows:
    by = grouped(of("gpu_memcpy"), lambda rank, e: (rank, e["name"]))
    rows = []
    for key, events in by.items():
        size = sum(e["args"]["bytes"] for e in events)
        rows.append((*key, len(events), size, total(events), size / total(events)))
    return sorted(rows, key=lambda row: (-row[3], row[0], row[1]))


def steps() -> Rows:
    # 1 ms each, from 1 ms and 2 ms of the traces on.
    return [
        (rank, step, at, at + 1_000_000, 1_000_000)
        for step, at in ((10, 1_000_000 - ORIGIN), (11, 2_000_000 - ORIGIN))
        for rank in RANKS
    ]


def memory_events() -> Iterator[tuple[int, Event]]:
    yield from ((rank, e) for rank in RANKS for e in EVENTS[rank] if e["name"] == "[memory]")


def step_starts() -> Rows:
    """The ranks of the reference run have one clock."""
    first = min(start(e) for rank in RANKS for e in EVENTS[rank] if e["ph"] == "X")
    rows = [
        (int(e["name"].partition("#")[2]), rank, start(e) - first, duration(e))
        for rank, e in of("user_annotation")
        if e["name"].startswith("ProfilerStep#")
    ]
    return sorted(rows, key=lambda row: (row[0], row[2], row[1]))


def largest_allocations() -> Rows:
    rows = [
        (rank, start(e), e["args"]["Device Id"], e["args"]["Bytes"], e["args"]["Total Allocated"])
        for rank, e in memory_events()
        if e["args"]["Bytes"] > 0
    ]
    return sorted(rows, key=lambda row: (-row[3], row[0], row[1]))[:20]


def memory_peaks() -> Rows:
    by = grouped(memory_events(), lambda rank, e: (rank, e["args"]["Device Type"], e["args"]["Device Id"]))
    rows = [
        (*key, max(e["args"]["Total Allocated"] for e in each), max(e["args"]["Total Reserved"] for e in each))
        for key, each in by.items()
    ]
    return sorted(rows, key=lambda row: (-row[3], row[0], row[2]))


def messages() -> Rows:
    named = [(rank, e) for rank, e in of("kernel") if "Collective name" in e["args"]]
    by = grouped(named, lambda rank, e: tuple(e["args"][k] for k in ("Collective name", "dtype", "Process Group Name")))
    rows = [(*key, len(events), sum(e["args"]["In msg nelems"] for e in events)) for key, events in by.items()]
    return sorted(rows, key=lambda row: (-row[4], row[0]))


def longest_waits() -> Rows:
    # Rank 1 is 150 µs late to each all_reduce, which ends on both ranks at once; the gathers begin and end together.
    reduced = [(0, step, "all_reduce", at, at + 300_000, 300_000, 150_000) for step, at in STEPS]
    late = [(1, step, "all_reduce", at + 150_000, at + 300_000, 150_000, 0) for step, at in STEPS]
    gathered = [
        (rank, step, "all_gather", at + 320_000, at + 380_125, 60_125, 0) for rank in RANKS for step, at in STEPS
    ]
    return reduced + sorted(late + gathered, key=lambda row: (row[0], row[3]))


STEPS = ((10, 1_400_000 - ORIGIN), (11, 2_400_000 - ORIGIN))


def step_spread() -> Rows:
    """Windows of both ranks, as the reference's golden has them."""
    # Step 10 begins where the backlog ends, at 1.07 ms, and ends at 2 ms; step 11 follows, and lasts 1 ms.
    return [(10, 930_000, 930_000, 0), (11, 1_000_000, 1_000_000, 0)]


def exposed_share() -> Rows:
    # From the backlog's start, at 0.9 ms, to the end of the last gather, at 2.780125 ms; per step, the all_reduce
    # after the second product (500 + 150·rank → 700 µs) and before it (rank 0: none), and the gather.
    rows = []
    for rank in RANKS:
        exposed = 2 * (exposed_per_step(rank) + 60_125)
        rows.append((rank, exposed, 1_880_125, exposed / 1_880_125))
    return sorted(rows, key=lambda row: -row[3])


def exposed_per_step(rank: int) -> int:
    late = 150 * rank
    reduce = set(range(400 + late, 700))
    compute = set(range(350 + late, 500 + late)) | set(range(140 + late, 340 + late))
    return 1000 * len(reduce - compute)


ORACLES: dict[str, Callable[[], Rows]] = {
    each.__name__: each
    for each in (
        longest_kernels, kernels_by_name, events_by_rank, streams, slow_on_one_rank, launch_latency, launch_calls,
        operators_by_device_time, shapes_of_matrix_products, host_threads, python_self_time, synchronizations, copies,
        steps, step_starts, largest_allocations, memory_peaks, messages, longest_waits, step_spread, exposed_share,
    )
}  # fmt: skip


def test_every_example_has_an_oracle() -> None:
    assert list(ORACLES) == list(EXAMPLES)
    assert len(EXAMPLES) == 21


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_returns_what_plain_python_computes(run: Run, name: str) -> None:
    expected = ORACLES[name]()
    found = run.sql(EXAMPLES[name].sql)
    assert expected, "an example without rows shows nothing"
    assert [each for row in found.rows() for each in row] == pytest.approx([each for row in expected for each in row])
    assert found.height == len(expected)


def test_the_examples_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "queries.md").read_text(encoding="utf-8")
    for name, example in EXAMPLES.items():
        assert f"### `{name}`" in text
        assert f"```sql\n{example.sql}\n```" in text

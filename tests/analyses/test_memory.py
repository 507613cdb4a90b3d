"""Memory: hand-worked traces, and every sample of real ones read once more in plain Python."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto
from tests.analyses import plain_events

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.show.report.formatting import sentence
from rankscope.show.report.summary import memory as memory_line

REAL = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank1.json.gz",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks/host_0.1795170630711365614.pt.trace.json.gz",
    "tensorboard-plugin/unit_tests/single/test_memory_view__json_content.pt.trace.json",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
]
SLOW = [
    "hta/nccl_parser_config/nccl_data.json.gz",
    "tracelens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem.rank0.json.gz",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
]


def opened(folder: Path, events: list[kineto.Event], **metadata: Any) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events, **metadata)), executor="serial")


def two_steps() -> list[kineto.Event]:
    """Two steps; a block of 100 bytes is kept in each, one of 60 comes and goes, and one of before is released."""
    events: list[kineto.Event] = []
    held = 1000
    for number, at in ((5, 100), (6, 200)):
        events += [
            kineto.step(number, at, 90),
            kineto.op("aten::linear", at + 10, 40),
            kineto.op("aten::empty", at + 15, 5),
            kineto.memory(at + 16, 100, allocated=held + 100, reserved=2000, address=number),
            kineto.memory(at + 30, 60, allocated=held + 160, reserved=2000 + 48 * (number - 5), address=77),
            kineto.memory(at + 60, -60, allocated=held + 100, reserved=2000, address=77),
        ]
        held += 100
    return [*events, kineto.memory(195, -40, allocated=1060, reserved=2000, address=3)]


def test_a_hand_worked_trace(tmp_path: Path) -> None:
    events = two_steps()
    # Between the steps 40 bytes of before are released: the later samples are 40 lower.
    for event in events:
        if event["name"] == "[memory]" and event["ts"] > 195:
            event["args"]["Total Allocated"] -= 40
    events += [kineto.launch(40, 5, name="cudaMalloc"), kineto.launch(250, 1, name="cudaFree")]
    events += [kineto.launch(260, 1, name="cudaMallocHost")]
    devices = [{"id": 0, "name": "H100", "totalGlobalMem": 4096, "numSms": 132}]
    run = opened(tmp_path, events, deviceProperties=devices)

    assert run.memory().to_dicts() == [
        {
            "rank": 0, "window": 0, "device": "cuda:0", "allocations": 4, "releases": 3, "allocated_bytes": 320,
            "released_bytes": 160, "first_allocated": 1000, "last_allocated": 1160, "peak_allocated": 1220,
            "peak_at_ns": 230_000, "peak_step": 6, "peak_operator": "aten::linear", "change_peak": 220,
            "peak_reserved": 2048, "unused_reserved": (2048 - 1220) / 2048, "total_memory": 4096,
            "growth": 60, "growing_steps": 1, "steps": 2, "device_allocations": 1, "device_frees": 1,
        }
    ]  # fmt: skip
    steps = run.memory(by="step").to_dicts()
    assert [(row["step"], row["peak_allocated"], row["end_allocated"], row["growth"]) for row in steps] == [
        (5, 1160, 1100, None),
        (6, 1220, 1160, 60),
    ]
    assert [(row["allocated_bytes"], row["released_bytes"], row["change_peak"]) for row in steps] == [
        (160, 60, 160),
        (160, 60, 220),
    ]
    operators = {row["name"]: row for row in run.memory(by="operator").to_dicts()}
    assert operators["aten::linear"] | {"rank": 0} == {
        "rank": 0, "device": "cuda:0", "name": "aten::linear", "calls": 2, "allocations": 2, "releases": 0,
        "self_allocated": 120, "self_increase": 120, "total_increase": 320, "peak_bytes": 60,
    }  # fmt: skip
    assert operators["aten::empty"]["total_increase"] == operators["aten::empty"]["self_increase"] == 200
    assert operators["aten::empty"]["peak_bytes"] == 200
    assert operators[None]["self_increase"] == operators[None]["total_increase"] == -160
    assert (operators[None]["calls"], operators[None]["releases"]) == (0, 3)

    curve = run.memory_curve()
    assert curve["allocated"].to_list() == [1100, 1160, 1100, 1060, 1160, 1220, 1160]
    assert curve["change"].to_list() == [100, 160, 100, 60, 160, 220, 160]
    assert curve["step"].to_list() == [5, 5, 5, None, 6, 6, 6]

    blocks = {(row["address"], row["allocated_ns"]): row for row in run.memory_blocks().to_dicts()}
    assert len(blocks) == 5
    assert blocks[77, 130_000]["lifetime_ns"] == 30_000
    assert blocks[77, 130_000]["operator"] == "aten::linear"
    assert blocks[77, 130_000]["released_by"] is None
    assert blocks[5, 116_000]["released_ns"] is None
    assert blocks[3, None]["released_ns"] == 195_000
    assert blocks[3, None]["bytes"] == 40


def test_only_the_chosen_steps(tmp_path: Path) -> None:
    file = kineto.write(tmp_path / "rank0.json", kineto.trace(two_steps()))
    run = rankscope.open(file, steps="5", executor="serial")
    assert run.memory()["peak_allocated"].to_list() == [1160]
    assert run.memory_curve().height == 3
    assert run.memory(by="step")["step"].to_list() == [5]
    assert run.memory_blocks().height == 2
    assert run.memory(by="operator")["self_allocated"].sum() == 160


def test_events_out_of_order_and_on_several_devices(tmp_path: Path) -> None:
    events = [
        kineto.memory(30, 8, allocated=24, reserved=64, device=1),
        kineto.memory(10, 16, allocated=16, reserved=32, device=1),
        kineto.memory(20, 5, allocated=5, reserved=0, device=-1, device_type=0),
        kineto.memory(25, 7, allocated=7, reserved=9, device=2, device_type=12),
        kineto.memory(26, 7, allocated=7, reserved=9, device=0, device_type=99),
    ]
    run = opened(tmp_path, events)
    rows = {row["device"]: row for row in run.memory().to_dicts()}
    assert set(rows) == {"cuda:1", "cpu", "xpu:2", "type99:0"}
    assert rows["cuda:1"]["last_allocated"] == rows["cuda:1"]["peak_allocated"] == 24
    assert rows["cuda:1"]["unused_reserved"] == 40 / 64
    # The host reserves nothing and has no malloc of a driver: null, where a device has 0.
    assert rows["cpu"]["peak_reserved"] is rows["cpu"]["device_allocations"] is None
    assert rows["cuda:1"]["device_allocations"] == 0
    assert rows["cuda:1"]["growth"] is None
    assert rows["cuda:1"]["steps"] == 0


def test_an_address_is_used_again(tmp_path: Path) -> None:
    def at(time: int, size: int) -> kineto.Event:
        return kineto.memory(time, size, allocated=0, reserved=0, address=9)

    # The third allocation was never seen to be released; another device's release is not of it.
    events = [at(1, 8), at(2, -8), at(3, 16), at(4, -16), at(5, 32), at(6, 64)]
    events.append(kineto.memory(7, -64, allocated=0, reserved=0, address=9, device=1))
    rows = opened(tmp_path, events).memory_blocks().select("device", "bytes", "lifetime_ns").rows()
    assert rows == [
        ("cuda:0", 8, 1000),
        ("cuda:0", 16, 1000),
        ("cuda:0", 32, None),
        ("cuda:0", 64, None),
        ("cuda:1", 64, None),
    ]


def test_nothing_recorded(tmp_path: Path) -> None:
    run = opened(tmp_path, kineto.small_step())
    for name in ("memory", "memory_curve", "memory_by_step", "memory_by_operator", "memory_blocks"):
        result = run.analyze(name)[name]
        assert result.frame.height == 0
        assert result.findings == ()


def on_host(ts: float, size: int, address: int, *, total: int = 0) -> kineto.Event:
    return kineto.memory(ts, size, allocated=total, reserved=0, address=address, device=-1, device_type=0)


def test_the_hosts_memory_counts_from_the_start_of_each_recording(tmp_path: Path) -> None:
    """Torch's total still has what the first window allocated and was released between the windows: 700 bytes."""
    windows = [
        [kineto.step(1, 0, 100), on_host(10, 300, 1, total=300), on_host(20, 700, 2, total=1000)],
        # The block of 300 bytes is released in the second window: it is not of this recording.
        [kineto.step(3, 0, 100), on_host(10, -300, 1, total=700), on_host(20, 500, 3, total=1200),
         on_host(30, -100, 9, total=1100), on_host(40, 50, 4, total=1150), on_host(50, -500, 3, total=650)],
    ]  # fmt: skip
    for number, events in enumerate(windows):
        kineto.write(
            tmp_path / f"window{number}.rank0.json",
            kineto.trace(events, rank=0, world_size=1, baseTimeNanoseconds=10**18 + number * 10**9),
        )
    run = rankscope.open(tmp_path, executor="serial")
    columns = ("window", "first_allocated", "peak_allocated", "last_allocated", "peak_step")
    assert run.memory().select(columns).rows() == [(0, 0, 1000, 1000, 1), (1, 0, 550, 50, 3)]
    assert run.memory_curve().filter(pl.col("window") == 1)["allocated"].to_list() == [0, 500, 500, 550, 50]
    assert run.memory(by="step")["end_allocated"].to_list() == [1000, 50]
    assert run.memory_curve(by="interval").group_by("window").agg(pl.col("allocated").max()).sort("window").rows() == [
        (0, 1000),
        (1, 550),
    ]
    categories = run.memory(by="category")
    by_window = categories.group_by("window").agg(pl.col("peak_bytes", "last_bytes").sum()).sort("window")
    assert by_window.rows() == [(0, 1000, 1000), (1, 550, 50)]
    assert "earlier" not in categories["category"].to_list()
    headline = run.analyze("memory")["memory"].headline
    assert headline is not None
    said = "Peak memory: 1.00 kB allocated since the recording began, on rank 0, cpu, in step 1 (entire recording)."
    assert sentence(headline) == said
    assert "1.00 kB peak allocated since the recording began, on rank 0 (cpu)" in str(
        memory_line(run.analyze("memory")["memory"])
    )


def test_shared_memory_of_a_loaders_workers_counts(tmp_path: Path) -> None:
    """Torch writes a total of 0 with it: the batch of 2,408,448 bytes would be −2.41 MB before the first event."""
    events = [
        kineto.step(1, 0, 100),
        on_host(10, 2_408_448, 1),
        on_host(20, 1000, 2, total=1000),
        on_host(30, -2_408_448, 1),
        on_host(40, 24, 3, total=1024),
    ]
    row = opened(tmp_path, events).memory().row(0, named=True)
    assert (row["first_allocated"], row["peak_allocated"], row["last_allocated"]) == (0, 2_409_448, 1024)


def test_nothing_reserved(tmp_path: Path) -> None:
    row = opened(tmp_path, [kineto.memory(10, 64, allocated=64, reserved=0)]).memory().row(0, named=True)
    assert (row["peak_allocated"], row["peak_reserved"], row["unused_reserved"]) == (64, 0, None)


def test_files_without_addresses_and_totals(tmp_path: Path) -> None:
    events = two_steps()
    for event in events:
        if event["name"] == "[memory]":
            for key in ("Addr", "Total Allocated", "Total Reserved"):
                del event["args"][key]
    run = opened(tmp_path, events)
    row = run.memory().row(0, named=True)
    assert row["peak_allocated"] is row["first_allocated"] is row["peak_reserved"] is row["unused_reserved"] is None
    assert (row["change_peak"], row["peak_at_ns"], row["peak_step"]) == (220, 230_000, 6)
    assert row["growth"] == 60
    assert run.memory(by="operator")["peak_bytes"].null_count() == run.memory(by="operator").height
    blocks = run.analyze("memory_blocks")["memory_blocks"]
    assert blocks.frame.height == 0
    assert [finding.id for finding in blocks.findings] == ["memory-without-addresses"]


def test_addresses_of_other_steps_are_recorded_too(tmp_path: Path) -> None:
    events = [
        kineto.step(5, 0, 100),
        kineto.step(6, 100, 100),
        kineto.memory(10, 64, allocated=64, reserved=128, address=1),
        kineto.memory(150, -64, allocated=0, reserved=128, address=1),
    ]
    path = kineto.write(tmp_path / "rank0.json", kineto.trace(events))
    run = rankscope.open(path, executor="serial", steps="6")
    assert run.memory().height == 1
    blocks = run.analyze("memory_blocks")["memory_blocks"]
    assert (blocks.frame.height, blocks.findings) == (0, ())


# -- once more, in plain Python -------------------------------------------------------------------------------------

KINDS = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu"}


def plain_samples(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Every allocation and release in the order of time, with step, stack of operators, and the running sum."""
    events = plain_events.ranges(trace)
    operators = [event for event in events if event.category in ("cpu_op", "operator") and event.step is None]
    if any(event.category == "operator" for event in operators):
        operators = [event for event in operators if not plain_events.named_2020(event.name)]
    steps = [event for event in events if event.step is not None and event.category != "gpu_user_annotation"]
    found = []
    for place, raw in enumerate(trace["traceEvents"]):
        if raw.get("name") == "[memory]" and raw.get("ph") in ("i", "I"):
            found.append((plain_events.ns(raw["ts"]), place, raw))
    found.sort(key=lambda one: one[:2])
    stacks = plain_events.stacks(operators, [(time, plain_events.thread_of(raw)) for time, _, raw in found])
    sums: dict[str, int] = defaultdict(int)
    since: dict[int, int] = {}
    samples = []
    for (time, _, raw), stack in zip(found, stacks, strict=True):
        args = raw["args"]
        kind = KINDS[args["Device Type"]]
        device = kind if args["Device Id"] < 0 else f"{kind}:{args['Device Id']}"
        sums[device] += args["Bytes"]
        total = args.get("Total Allocated")
        if kind == "cpu" and "Addr" in args:
            # What was allocated since the recording began: its total counts other windows, too.
            if args["Bytes"] > 0:
                since[args["Addr"]] = since.get(args["Addr"], 0) + args["Bytes"]
            elif args["Bytes"] < 0 and args["Addr"] in since:
                since[args["Addr"]] += args["Bytes"]
                if not since[args["Addr"]]:
                    del since[args["Addr"]]
            total = sum(since.values())
        step = [event.step for event in steps if event.start <= time < event.end]
        samples.append(
            {
                "device": device,
                "time": time,
                "bytes": args["Bytes"],
                "address": args.get("Addr"),
                "allocated": total,
                "reserved": args.get("Total Reserved") if kind != "cpu" else None,
                "change": sums[device],
                "step": step[0] if step else None,
                "stack": stack,
            }
        )
    return samples


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    trace = plain_events.load(shared_traces / name)
    samples = plain_samples(trace)
    run = rankscope.open(shared_traces / name, executor="serial")

    curve = run.memory_curve().to_dicts()
    assert len(curve) == len(samples)
    for got, wanted in zip(curve, samples, strict=True):
        innermost = wanted["stack"][-1].name if wanted["stack"] else None
        assert (got["device"], got["time_ns"], got["bytes"], got["allocated"], got["reserved"]) == (
            wanted["device"], wanted["time"], wanted["bytes"], wanted["allocated"], wanted["reserved"],
        )  # fmt: skip
        assert (got["change"], got["step"], got["operator"]) == (wanted["change"], wanted["step"], innermost)

    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        by_device[sample["device"]].append(sample)
    memory = {row["device"]: row for row in run.memory().to_dicts()}
    assert set(memory) == set(by_device)
    for device, mine in by_device.items():
        assert_device(memory[device], mine)
        assert_steps([row for row in run.memory(by="step").to_dicts() if row["device"] == device], mine)
    assert_operators(run.memory(by="operator").to_dicts(), samples)
    assert_blocks(run.memory_blocks().to_dicts(), samples)


def assert_device(row: dict[str, Any], mine: list[dict[str, Any]]) -> None:
    key = "change" if mine[0]["allocated"] is None else "allocated"
    top = max(sample[key] for sample in mine)
    first = next(sample for sample in mine if sample[key] == top)
    assert row["peak_allocated"] == (top if key == "allocated" else None)
    assert (row["peak_at_ns"], row["peak_step"]) == (first["time"], first["step"])
    assert row["peak_operator"] == (first["stack"][-1].name if first["stack"] else None)
    assert row["change_peak"] == max(0, *(sample["change"] for sample in mine))
    assert row["allocations"] == sum(sample["bytes"] > 0 for sample in mine)
    assert row["released_bytes"] == -sum(min(sample["bytes"], 0) for sample in mine)
    if mine[0]["reserved"]:
        held = max(sample["reserved"] for sample in mine)
        last = [sample for sample in mine if sample["reserved"] == held][-1]
        assert row["unused_reserved"] == (held - last["allocated"]) / held


def assert_steps(rows: list[dict[str, Any]], mine: list[dict[str, Any]]) -> None:
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for sample in mine:
        if sample["step"] is not None:
            by_step[sample["step"]].append(sample)
    assert [row["step"] for row in rows] == list(by_step)
    before = None
    for row, inside in zip(rows, by_step.values(), strict=True):
        end = inside[-1]["change"]
        assert row["growth"] == (None if before is None else end - before)
        assert (row["end_allocated"], row["end_change"]) == (inside[-1]["allocated"], end)
        assert row["change_peak"] == max(sample["change"] for sample in inside)
        before = end


def assert_operators(rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> None:
    selves: dict[Any, int] = defaultdict(int)
    totals: dict[Any, int] = defaultdict(int)
    calls: dict[Any, set[int]] = defaultdict(set)
    for sample in samples:
        names = {event.name for event in sample["stack"]} or {None}
        selves[sample["device"], sample["stack"][-1].name if sample["stack"] else None] += sample["bytes"]
        for name in names:
            totals[sample["device"], name] += sample["bytes"]
        for event in sample["stack"]:
            calls[sample["device"], event.name].add(id(event))
    found = {(row["device"], row["name"]): row for row in rows}
    assert {key: row["total_increase"] for key, row in found.items()} == dict(totals)
    assert {key: row["self_increase"] for key, row in found.items()} == {key: selves[key] for key in totals}
    assert {key: row["calls"] for key, row in found.items()} == {key: len(calls[key]) for key in totals}
    for device in {device for device, _ in found}:
        # What operators allocated themselves, and was live at the peak, is at most the peak.
        mine = [row for row in rows if row["device"] == device]
        if all(row["peak_bytes"] is not None for row in mine):
            peak = max(*(s["change"] for s in samples if s["device"] == device), 0)
            before = -sum(s["bytes"] for s in orphans(samples) if s["device"] == device)
            assert peak <= sum(row["peak_bytes"] for row in mine) <= peak + before


def orphans(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Releases of what was allocated before recording."""
    known: set[tuple[str, int]] = set()
    found = []
    for sample in samples:
        key = sample["device"], sample["address"]
        if sample["bytes"] > 0:
            known.add(key)
        elif key in known:
            known.discard(key)
        else:
            found.append(sample)
    return found


def assert_blocks(rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> None:
    open_blocks: dict[tuple[str, int], list[Any]] = {}
    blocks: list[list[Any]] = []
    for sample in samples:
        if sample["address"] is None:
            continue
        key = sample["device"], sample["address"]
        if sample["bytes"] > 0:
            open_blocks[key] = [*key, sample["bytes"], sample["time"], None]
            blocks.append(open_blocks[key])
        elif key in open_blocks:
            open_blocks.pop(key)[4] = sample["time"]
        else:
            blocks.append([*key, -sample["bytes"], None, sample["time"]])
    got = [(r["device"], r["address"], r["bytes"], r["allocated_ns"], r["released_ns"]) for r in rows]
    assert sorted(got, key=str) == sorted((tuple(block) for block in blocks), key=str)

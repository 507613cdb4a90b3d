"""A run's timeline against what its files say, read in plain Python: nothing lost, nothing moved, bins exact."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kineto import (
    annotation,
    collective,
    event,
    frame,
    kernel,
    launch,
    loading,
    memcpy,
    memory,
    memset,
    op,
    small_step,
    step,
    trace,
    write,
    write_ranks,
)
from tests.show.timeline.drawing import Drawn, draw, touching, union
from tests.show.timeline.plain_timeline import counted, read

from rankscope.engine.pipeline import Run, open_run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.show.timeline import build as drawing_module
from rankscope.show.timeline import rank_lanes as rank_module
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.column_file import column_file, read_column_file
from rankscope.show.timeline.pyramid import shift_of
from rankscope.show.timeline.timeline import Timeline

NAMES = [name for name, _ in CATEGORIES]


def drawn(source: Path, **options: Any) -> tuple[Run, Timeline]:
    run = open_run(source, executor="serial", **options)
    return run, draw_run(run, clock_of(run))


def lane_events(timeline: Timeline, lanes: list[int]) -> dict[int, list[Drawn]]:
    """All events of lanes, as the page gets them at full zoom."""
    head, columns = read_column_file(timeline.events(lanes, -(1 << 52), 1 << 52, 1 << 30))
    assert not head["more"]
    found: dict[int, list[Drawn]] = {lane: [] for lane in lanes}
    rows = zip(*(columns[name].tolist() for name in ("lane", "row", "start_ns", "end_ns", "category")), strict=True)
    for lane, row, start, end, category in rows:
        assert row == len(found[lanes[lane]])
        found[lanes[lane]].append(Drawn(int(start), int(end), category))
    return found


def names_of(timeline: Timeline, lanes: list[int]) -> Counter[tuple[int, int, str]]:
    _, columns = read_column_file(timeline.events(lanes, -(1 << 52), 1 << 52, 1 << 30))
    rows = zip(*(columns[name].tolist() for name in ("start_ns", "end_ns", "name")), strict=True)
    return Counter((int(start), int(end), timeline.names[name]) for start, end, name in rows)


def check_against_files(run: Run, timeline: Timeline, random_: random.Random, windows: int = 3) -> int:
    """Every event of every file is in the lanes; bins of random windows are as drawn from them. Bins compared."""
    layout = timeline.layout()
    compared = 0
    for rank in layout["ranks"]:
        first_track, tracks = rank["tracks"]
        mine = layout["tracks"][first_track : first_track + tracks]
        lanes = [lane for track in mine for lane in range(track["lanes"][0], sum(track["lanes"]))]
        own = lanes[0]
        clock = timeline.clock.ranks[rank["rank"]]
        assert clock.drift == 0, "a file whose clock drifts is compared elsewhere"
        wanted: Counter[tuple[int, int, str]] = Counter()
        device: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for window, info in enumerate(file.info for file in run.loaded.ranks[rank["rank"]]):
            said, base = read(Path(info.path))
            shift = base + clock.offset_ns - timeline.clock.origin_ns
            assert shift == clock.bases[window]
            wanted += counted(said, shift)
            for each in said:
                if each.category:
                    device[each.category].append((each.start + shift, each.end + shift))
        assert names_of(timeline, lanes[1:]) == wanted
        events = lane_events(timeline, lanes)
        for lane in lanes[1:]:
            spans = [(one.start, one.end) for one in events[lane]]
            assert all(a[1] <= b[0] for a, b in pairwise(spans)), "events of a lane overlap"
        compared += check_tiles(timeline, lanes, events, random_, windows)
        # The rank as a whole is the union of its device's work, straight from the file.
        if device:
            top = timeline.levels - 1
            _, columns = read_column_file(timeline.tiles(top, 0, 1 << 14, [own]))
            busy: Counter[str] = Counter()
            for category, ns in zip(columns["busy_category"].tolist(), columns["busy_ns"].tolist(), strict=True):
                busy[NAMES[category]] += int(ns)
            assert busy == {name: length for name, spans in device.items() if (length := union(spans))}
    return compared


def check_tiles(
    timeline: Timeline, lanes: list[int], events: dict[int, list[Drawn]], random_: random.Random, windows: int
) -> int:
    compared = 0
    span = timeline.clock.span_ns
    for level in range(timeline.levels):
        width = 1 << shift_of(level)
        for _ in range(windows):
            asked = sorted(random_.sample(lanes, min(len(lanes), 8)))
            some = [one.start for lane in asked for one in events[lane]] or [0]
            bins = random_.randrange(1, 64)
            first = max(0, random_.choice((random_.choice(some), random_.randrange(span + 1))) // width - bins // 2)
            _, columns = read_column_file(timeline.tiles(level, first, bins, asked))
            got: dict[tuple[int, int], tuple[int, int, dict[int, float]]] = {}
            for lane, number, count, row in zip(
                *(columns[name].tolist() for name in ("bin_lane", "bin", "bin_count", "bin_row")), strict=True
            ):
                got[asked[lane], number] = count, row, {}
            for lane, number, category, ns in zip(
                *(columns[name].tolist() for name in ("busy_lane", "busy_bin", "busy_category", "busy_ns")), strict=True
            ):
                got[asked[lane], number][2][category] = ns
            expected = {
                (lane, number): one for lane in asked for number, one in draw(events[lane], width, first, bins).items()
            }
            assert got.keys() == expected.keys()
            for place, one in expected.items():
                count, row, busy = got[place]
                assert (count, busy) == (one.count, one.busy), (level, place)
                assert one.covers[row] == max(one.covers.values()), (level, place)
            low, high = first * width, (first + bins) * width
            _, exact = read_column_file(timeline.events(asked, low, high, 1 << 30))
            wanted = [(i, row) for i, lane in enumerate(asked) for row in touching(events[lane], low, high)]
            assert sorted(zip(exact["lane"].tolist(), exact["row"].tolist(), strict=True)) == sorted(wanted)
            compared += len(expected)
    return compared


def everything() -> list[dict[str, Any]]:
    """One of each kind of event, some crossing, some without duration."""
    return [
        step(4, 0, 1000),
        op("aten::mm", 10, 100, external=1),
        op("aten::inner", 20, 30),
        op("crosses", 90, 60),
        launch(30, 5, correlation=1, external=1),
        frame("train.py(1): step", 0, 900),
        frame("train.py(2): inner", 5, 10),
        loading(200, 50),
        annotation("nccl:all_reduce", 210, 10),
        {**annotation("nccl:all_reduce", 310, 10, on_device=True, tid=7), "pid": 0},
        kernel("gemm", 100, 50, correlation=1, external=1),
        kernel("gemm", 140, 30),
        kernel("short", 400, 0),
        kernel("ncclDevKernel_AllReduce", 120, 60, stream=20),
        memcpy(300, 20),
        memset(330, 2, stream=20),
        memory(15, 1024, allocated=1024, reserved=4096),
        event("Iteration Start: PyTorch Profiler", 1, ph="i", pid="Traces", tid="Trace", s="g"),
        event("Context Sync", 500, 20, cat="cuda_sync", pid=0, tid=7),
        event("overhead", 40, 3, cat="overhead", pid=-1, tid=0),
    ]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "run", {0: everything(), 1: everything()[:12], 3: [op("aten::add", 5, 6)]})


def test_every_event_is_there_and_bins_are_exact(small: Path) -> None:
    run, timeline = drawn(small)
    assert check_against_files(run, timeline, random.Random(1), windows=8) > 300


def test_the_layout(small: Path) -> None:
    _, timeline = drawn(small)
    layout = timeline.layout()
    assert [rank["rank"] for rank in layout["ranks"]] == [0, 1, 3]
    assert layout["base_bin_ns"] == 256
    assert layout["factor"] == 4
    first, count = layout["ranks"][0]["tracks"]
    tracks = layout["tracks"][first : first + count]
    assert [(track["kind"], track["folded"]) for track in tracks] == [
        ("rank", False), ("stream", False), ("annotation", True), ("stream", False), ("thread", False),
        ("python", True), ("annotation", True), ("annotation", True),
    ]  # fmt: skip
    assert [track["title"] for track in tracks][:4] == ["rank", "stream 7", "ranges on stream 7", "stream 20"]
    assert [track["title"] for track in tracks][-2:] == ["Trace", "thread 0"]
    assert list(map(tuple, layout["ranks"][0]["steps"])) == [(4, 0, 1_000_000)]
    assert layout["ranks"][0]["counters"] == ["memory:cuda:0:allocated", "memory:cuda:0:reserved", "queue"]
    # Lanes follow one another without a gap, and each names its own track.
    at = 0
    for number, track in enumerate(layout["tracks"]):
        assert track["lanes"][0] == at
        at += track["lanes"][1]
        assert set(layout["lanes"]["track"][track["lanes"][0] : at]) <= {number}
    assert at == len(layout["lanes"]["track"]) == timeline.lane_count


def test_categories_are_those_of_the_analyses(small: Path) -> None:
    _, timeline = drawn(small)
    found: dict[str, set[str]] = defaultdict(set)
    _, columns = read_column_file(timeline.events(list(range(timeline.lane_count)), 0, 1 << 50, 1 << 30))
    for name, category in zip(columns["name"].tolist(), columns["category"].tolist(), strict=True):
        found[timeline.names[name]].add(NAMES[category])
    assert found["gemm"] == {"compute"}
    assert found["ncclDevKernel_AllReduce"] == {"communication"}
    assert found["Memset (Device)"] == {"memset"}
    assert found["train.py(1): step"] == {"python"}
    assert found["ProfilerStep#4"] == found["nccl:all_reduce"] == {"annotation"}
    assert found["Context Sync"] == found["overhead"] == {"other"}
    # Rank 3 has no device: as a whole it computes where its top-level operators are.
    assert found["aten::add"] == {"host_op", "compute"}
    assert {"data_loading"} in found.values()


def test_a_second_opening_draws_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = drawn(small)
    monkeypatch.setattr(rank_module, "draw", None)
    monkeypatch.setattr(drawing_module, "draw_rank", None)
    again = open_run(small, executor="serial")
    monkeypatch.setattr(type(again), "analyze", None)
    second = draw_run(again, clock_of(again))
    assert second.layout() == first.layout()
    lanes = list(range(first.lane_count))
    assert second.tiles(0, 0, 4000, lanes) == first.tiles(0, 0, 4000, lanes)


@pytest.mark.parametrize("name", ["timeline.bin", "clock.bin"])
def test_a_file_that_is_cut_or_foreign_is_made_again(small: Path, private_cache: Path, name: str) -> None:
    _, first = drawn(small)
    for damage in (b"", b"nonsense" * 100, None):
        for file in private_cache.rglob(name):
            content = file.read_bytes()[:-8] if damage is None else damage
            file.unlink()  # `first` has the file mapped into memory
            file.write_bytes(content)
        _, second = drawn(small)
        assert second.layout() == first.layout()


def test_what_is_drawn_depends_on_the_clock_and_the_options(small: Path) -> None:
    _, first = drawn(small)
    _, named = drawn(small, communication="^gemm")
    tile = [read_column_file(one.tiles(0, 0, 4000, [0]))[1] for one in (first, named)]
    assert tile[0]["busy_category"].tolist() != tile[1]["busy_category"].tolist()


def test_a_cache_without_room_draws_all_the_same(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = drawn(small)
    for file in Path(open_run(small, executor="serial").loaded.ranks[0][0].folder).parent.parent.rglob("timeline.bin"):
        file.unlink()
    monkeypatch.setattr(rank_module, "write_sidecar", lambda *rest: False)
    _, second = drawn(small)
    lanes = list(range(first.lane_count))
    assert second.tiles(0, 0, 4000, lanes) == first.tiles(0, 0, 4000, lanes)


def test_a_rank_that_cannot_be_drawn_is_told_and_the_rest_are_there(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rank: int, *rest: Any) -> None:
        if rank == 1:
            raise ValueError("broken")
        rank_module.draw_rank(rank, *rest)

    monkeypatch.setattr(drawing_module, "draw_rank", fail)
    run = open_run(small, executor="serial")
    told = []
    timeline = draw_run(run, clock_of(run), lambda timeline, rank, error: told.append((rank, error)))
    assert sorted(timeline.ranks) == [0, 3]
    assert [(rank, str(error) if error else None) for rank, error in told if rank == 1] == [(1, "broken")]
    assert timeline.layout()["ranks"][1]["tracks"] == [0, 0]


def test_two_files_of_a_rank_lie_one_behind_the_other(tmp_path: Path) -> None:
    for number, base in ((0, 0), (1, 5_000)):
        events = [{**each, "ts": each["ts"] + base} for each in small_step(number=number)]
        write(tmp_path / "run" / f"rank0_iter{number}_{number}.json", trace(events, rank=0))
    run, timeline = drawn(tmp_path / "run")
    assert len(run.loaded.ranks[0]) == 2
    assert check_against_files(run, timeline, random.Random(2)) > 20
    assert [each[0] for each in timeline.layout()["ranks"][0]["steps"]] == [0, 1]


def test_ranks_are_moved_by_the_clock(tmp_path: Path) -> None:
    """Rank 1's clock is 1 ms ahead: after the move its collectives end with rank 0's."""
    by_rank = {}
    for rank, ahead in ((0, 0.0), (1, 1000.0)):
        by_rank[rank] = [collective(100 + 200 * n + ahead, 50, sequence=n) for n in range(12)]
    _, timeline = drawn(write_ranks(tmp_path / "run", by_rank))
    assert timeline.clock.aligned
    assert timeline.clock.ranks[1].offset_ns == -1_000_000
    starts = [read_column_file(timeline.events([lane], 0, 1 << 50, 100))[1]["start_ns"].tolist()
              for lane in (timeline.ranks[0].first_lane, timeline.ranks[1].first_lane)]  # fmt: skip
    assert starts[0] == starts[1] == [200_000 * number for number in range(12)]


def test_without_an_analysed_clock_ranks_keep_their_wall_clock(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(run: Run, *names: str) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "analyze", fail)
        _, timeline = drawn(small)
    assert sorted(timeline.ranks) == [0, 1, 3]
    assert not timeline.clock.aligned
    assert "broken" in caplog.text
    _, again = drawn(small)  # and it was not kept
    assert again.clock.ranks[0].offset_ns == 0


def test_an_empty_rank_has_its_own_lane(tmp_path: Path) -> None:
    _, timeline = drawn(
        write_ranks(tmp_path / "run", {0: [memory(15, 1024, allocated=1024, reserved=4096)], 1: [kernel("k", 1, 2)]})
    )
    layout = timeline.layout()
    assert layout["ranks"][0]["tracks"] == [0, 1]
    assert layout["lanes"]["events"][0] == 0
    assert timeline.tiles(0, 0, 10, [0, 1])


def test_column_files_are_read_as_they_were_written() -> None:
    values = {"a": ("u8", np.arange(3)), "b": ("f64", np.array([1.5, -2.0])), "c": ("u32", np.array([], dtype=int))}
    data = column_file(values, {"more": True})
    head, columns = read_column_file(data)
    assert head["more"] is True
    assert [columns[name].tolist() for name in "abc"] == [[0, 1, 2], [1.5, -2.0], []]
    base = 8 + int.from_bytes(data[4:8], "little")
    assert all((base + place["offset"]) % 8 == 0 for place in head["columns"].values())


REAL = (
    "modded-nanogpt-h100-8ranks",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks",
    "torchrec/rank2-sleeps-4ranks",
    "hta/negative_queue_length_values_check",
    "hta/ns_resolution_trace",
    "gloo-2ranks",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_traces_are_drawn_exactly(name: str, shared_traces: Path, shared_cache: Path) -> None:
    files = sorted((shared_traces / name).rglob("*.json*"))
    # A folder is a run, but for one that holds many: there the files of a run share the begin of their names.
    several = name == "gloo-2ranks"
    runs = {file.with_name(file.name.split(".rank")[0] + ".rank*") if several else file.parent for file in files}
    for each in sorted(runs):
        run, timeline = drawn(each)
        assert check_against_files(run, timeline, random.Random(name), windows=2) > 500

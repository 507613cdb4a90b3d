"""What the page's server costs: the pyramid, tiles, and the first view of a run whose tables are in the cache.

- pyramid: 10 million simulated events over 512 lanes (8 ranks): events per CPU second from sorted lanes to all levels.
- tiles: CPU of a tile as the page asks for it (64 lanes, 1,024 bins, anywhere, at every level) over those lanes, made
  and compressed; and of the exact events of a window.
- first view: `rankscope serve` on a cached set, from the start of the command to the first tiles of all ranks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import zstandard

from rankscope.engine.pipeline.clock import RankClock, RunClock
from rankscope.show.timeline.pyramid import LaneEvents, build, levels_for, merge_lane, shift_of
from rankscope.show.timeline.rank_lanes import RankLanes
from rankscope.show.timeline.timeline import Timeline
from rankscope.store.sidecar import Sidecar
from rankscope.store.trace_info import TraceInfo

EVENTS, LANES, RANKS = 10_000_000, 512, 8
LANES_OF_TILE, BINS_OF_TILE = 64, 1024
TILES = 400
SET = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces" / "modded-nanogpt-h100-8ranks"


def lanes_of_rank(seed: int, lanes: int, each: int) -> LaneEvents:
    """A rank's lanes: bursts of short events, gaps, and some long ones; from one to four categories in a lane."""
    random = np.random.default_rng(seed)
    starts, ends, kinds = [], [], []
    for lane in range(lanes):
        gap = random.exponential(3_000, each) * random.choice([0.1, 1.0, 20.0], each, p=[0.6, 0.38, 0.02])
        length = np.minimum(random.lognormal(8.8, 1.3, each), 5e6).astype(np.int64)
        start = np.cumsum(gap.astype(np.int64) + np.concatenate([[0], length[:-1]]))
        starts.append(start)
        ends.append(start + length)
        kinds.append(random.integers(0, 1 + lane % 4, each).astype(np.uint8))
    start, end, kind = np.concatenate(starts), np.concatenate(ends), np.concatenate(kinds)
    pointer = np.arange(lanes + 1, dtype=np.int64) * each
    return LaneEvents(pointer, start, end, kind, merge_lane(start[:each], end[:each], kind[:each]))


def simulated(count: int = RANKS, lanes: int = LANES, total: int = EVENTS) -> tuple[Timeline, float]:
    """The timeline of simulated ranks with some lanes and events in all, and the CPU seconds of their pyramids.

    The first lane of a rank is its own, the others are streams.
    """
    ranks = {rank: lanes_of_rank(rank, lanes // count, total // lanes) for rank in range(count)}
    span = max(int(events.end.max()) for events in ranks.values())
    clock = RankClock((0,), 0.0, 0, 0, None)
    traces: Any = {rank: [SimpleNamespace(info=TraceInfo(path=f"rank{rank}.json", rank=rank))] for rank in ranks}
    timeline = Timeline(RunClock(0, span, True, None, dict.fromkeys(ranks, clock)), traces)
    seconds = 0.0
    for rank, events in ranks.items():
        begin = time.process_time()
        sums = build(events, levels_for(span))
        seconds += time.process_time() - begin
        size, own = events.start.size, events.pointer.size - 1
        arrays = {
            "pointer": events.pointer, "start": events.start, "end": events.end, "category": events.category,
            "merged_start": events.merged[0], "merged_end": events.merged[1], "merged_category": events.merged[2],
            "name": np.random.default_rng(rank).integers(0, 500, size).astype(np.uint32),
            "lane_track": np.arange(own, dtype=np.int32), "lane_depth": np.zeros(own, dtype=np.int32),
            "lane_overflow": np.zeros(own, dtype=np.uint8), "lane_first": events.start[events.pointer[:-1]],
            "lane_last": events.end[events.pointer[1:] - 1],
            "name_text": np.frombuffer(b"".join(b"kernel_%04d" % i for i in range(500)), dtype=np.uint8),
            "name_ends": np.arange(1, 501, dtype=np.int64) * 11,
            **sums,
        }  # fmt: skip
        tracks = [["rank", "", False], *(["stream", f"stream {i}", False] for i in range(1, own))]
        steps = [[step, span * step // 4, span * (step + 1) // 4] for step in range(4)]
        facts = {"tracks": tracks, "steps": steps, "counters": []}
        timeline.add(RankLanes(rank, Sidecar("", facts, arrays)))
    return timeline, seconds


def tiles(timeline: Timeline) -> None:
    """CPU of single responses."""
    random = np.random.default_rng(7)
    packer = zstandard.ZstdCompressor(level=1)
    made, packed, sizes, exact = [], [], [], []
    for number in range(TILES):
        level = number % timeline.levels
        width = 1 << shift_of(level)
        first = int(random.integers(0, max(timeline.clock.span_ns // width - BINS_OF_TILE, 1)))
        lane = int(random.integers(0, LANES - LANES_OF_TILE + 1))
        begin = time.process_time()
        body = timeline.tiles(level, first, BINS_OF_TILE, range(lane, lane + LANES_OF_TILE))
        middle = time.process_time()
        packer.compress(body)
        made.append(middle - begin)
        packed.append(time.process_time() - begin)
        sizes.append(len(body))
        at = int(random.integers(0, timeline.clock.span_ns))
        begin = time.process_time()
        timeline.events(range(lane, lane + LANES_OF_TILE), at, at + 2_000_000, 48_000)
        exact.append(time.process_time() - begin)
    for what, values in (("tile", made), ("tile, compressed", packed), ("events of 2 ms", exact)):
        median, high = np.percentile(values, (50, 95)) * 1e3
        print(f"{what}: CPU median {median:.1f} ms, p95 {high:.1f} ms")
    print(f"a tile is {np.mean(sizes) / 1e6:.2f} MB, at most {max(sizes) / 1e6:.2f} MB")


def first_view(folder: Path, cache: Path, *, until_ready: bool = True) -> dict[str, float]:
    """A freshly started server: wall seconds until each of its answers, and its CPU seconds by then.

    Args:
        until_ready: wait for the analyses too.
    """
    environment = dict(os.environ, RANKSCOPE_CACHE=str(cache), PYTHONUNBUFFERED="1")
    command = [sys.executable, "-m", "rankscope", "serve", str(folder), "--no-open"]
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
    )

    def get(name: str) -> bytes:
        with opener.open(base + name, timeout=60) as answer:
            data: bytes = answer.read()
            return data

    begin = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(rb"(http://\S+/)\?token=\S+", server.stdout.readline())
        assert found is not None
        base = found[1].decode()
        opener.open(found[0].decode(), timeout=60).read()
        page = time.perf_counter() - begin
        while "timeline" not in json.loads(get("api/state"))["ready"]:
            time.sleep(0.01)
        layout: dict[str, Any] = json.loads(get("api/timeline"))
        own = [track["lanes"][0] for track in layout["tracks"] if track["kind"] == "rank"]
        get("api/summary")
        get("api/names?from=0")
        get(f"api/tiles?level={layout['levels'] - 3}&first=0&bins=1024&lanes={','.join(map(str, own))}")
        seen = time.perf_counter() - begin
        used = psutil.Process(server.pid).cpu_times()
        while until_ready and json.loads(get("api/state"))["phase"] != "ready":
            time.sleep(0.05)
        ready = time.perf_counter() - begin
        return {"page": page, "timeline": seen, "cpu": used.user + used.system, "ready": ready}
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    timeline, seconds = simulated()
    print(
        f"{EVENTS:,} events over {LANES} lanes: pyramid {EVENTS / seconds / 1e6:.1f} million events per CPU second",
        flush=True,
    )
    tiles(timeline)
    del timeline
    with tempfile.TemporaryDirectory() as scratch:
        folder = SET
        if not folder.exists():
            folder = Path(scratch) / "eight"
            command = [sys.executable, "-m", "rankscope", "simulate", str(folder), "--ranks", "8", "--steps", "4"]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        first_view(folder, Path(scratch) / "cache")  # fills the cache
        views = [first_view(folder, Path(scratch) / "cache") for _ in range(5)]
        middle = sorted(views, key=lambda view: view["timeline"])[2]
        print(
            f"{folder.name}, cached: page after {middle['page']:.2f} s, timeline of all ranks after "
            f"{middle['timeline']:.2f} s ({middle['cpu']:.2f} s of CPU), everything after {middle['ready']:.1f} s"
        )


if __name__ == "__main__":
    main()

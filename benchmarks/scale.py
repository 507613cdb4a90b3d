"""How reading grows with ranks, with file size and with workers, and what a second opening costs; on simulated traces.

- summary: CPU per further rank of 3.5 MB for what `rankscope summary` computes, at 64, 256 and 1,024 ranks: the first
  time, how much of that is reading, and a second time; how many times what msgspec takes to decode the rank's events;
  the peak memory of the process.
- ranks: CPU seconds per rank and the parent's peak memory at 16, 64 and 256 ranks, with two workers.
- workers: CPU seconds of two processes against a serial run of the same ranks.
- memory: the peak of reading one rank of 2 GB of JSON.
- second open: 8 ranks of 50 MB, tables in the cache: seconds beyond imports to `device_time`, and the bytes read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ingest import DECODE

_CHILD = """
import json, os, re, resource, sys, time
from pathlib import Path
import rankscope, rankscope.engine.pipeline, rankscope.analyses
folder, executor, names, workers = sys.argv[1], sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])
rankscope.analyses.all_analyses()
import polars, polars.io
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024
def read():
    return int(re.search(r"rchar: (\\d+)", Path("/proc/self/io").read_text()).group(1))
def used():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
began, before = time.perf_counter(), read()
run = rankscope.open(folder, executor=executor, workers=workers or None)
started = used()
run.load()
reading = used() - started
run.diagnose() if names == ["diagnose"] else run.analyze(*names)
wall = time.perf_counter() - began
# Workers are children of the fork server: their CPU time is known once it has ended and was waited for.
from multiprocessing import forkserver
forkserver._forkserver._stop()
print(json.dumps({"cpu": used(), "reading": reading, "wall": wall, "peak": status("VmHWM"), "read": read() - before,
                  "json": sum(t.json_bytes for t in run.traces)}))
"""


def _measure(
    folder: Path, cache: Path, executor: str, names: str = "device_time", workers: int = 0
) -> dict[str, float]:
    environment = dict(os.environ, RANKSCOPE_CACHE=str(cache), POLARS_MAX_THREADS="1", PYTHONWARNINGS="ignore")
    environment["_RJEM_MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"  # as the command line sets it
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), executor, names, str(workers)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=3600,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _simulate(folder: Path, ranks: int, *more: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "rankscope", "simulate", str(folder), "--ranks", str(ranks), "--steps", "4", *more],
        check=True,
        capture_output=True,
        timeout=1200,
    )


_BEST_OF_DECODING = """
import time
times = []
for _ in range(20):
    began = time.process_time()
    work()
    times.append(time.process_time() - began)
print(min(times))
"""


def _decoding(trace: Path) -> float:
    """CPU seconds of msgspec decoding one rank's events into structs, best of 20."""
    program = DECODE.format(path=str(trace)) + _BEST_OF_DECODING
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    return float(done.stdout)


def summary(root: Path, counts: Sequence[int] = (64, 256, 1024)) -> None:
    """What `rankscope summary` computes, in one process; the further rows are free of what a start costs.

    Reading is known in a serial run alone: workers' CPU time counts once they have ended.
    """
    print(
        f"{'ranks':>6} {'first: ms per further rank':>28} {'of that reading':>16} {'x decoding':>11} {'again':>7} "
        f"{'x decoding':>11} {'parent MB':>10}"
    )
    before: dict[str, float] = {}
    counted = 0
    for count in counts:
        folder, cache = root / f"r{count}", root / f"c{count}"
        _simulate(folder, count, "--mesh", f"dp={count // 16},tp=8,pp=2")
        first = _measure(folder, cache, "serial", "diagnose")
        again = _measure(folder, cache, "serial", "diagnose")
        now = {"first": first["cpu"], "reading": first["reading"], "again": again["cpu"]}
        further = {name: 1e3 * (now[name] - before.get(name, 0.0)) / (count - counted) for name in now}
        decoding = 1e3 * _decoding(next(folder.glob("rank*.json*")))
        print(
            f"{count:6} {further['first']:28.0f} {further['reading']:16.0f} {further['first'] / decoding:11.1f} "
            f"{further['again']:7.0f} {further['again'] / decoding:11.1f} {again['peak'] / 1e6:10.0f}",
            flush=True,
        )
        before, counted = now, count
        shutil.rmtree(folder)
        shutil.rmtree(cache)


def ranks(root: Path) -> None:
    """CPU per further rank; only the first row includes starting three interpreters."""
    print(f"{'ranks':>6} {'JSON MB':>8} {'CPU s':>7} {'ms per further rank':>20} {'parent MB':>10}")
    before, counted = 0.0, 0
    for count in (16, 64, 256):
        _simulate(root / f"r{count}", count)
        found = _measure(root / f"r{count}", root / f"a{count}", "processes", workers=2)
        further = f"{1e3 * (found['cpu'] - before) / (count - counted):20.1f}" if counted else f"{'':20}"
        print(
            f"{count:6} {found['json'] / 1e6:8.0f} {found['cpu']:7.1f} {further} {found['peak'] / 1e6:10.0f}",
            flush=True,
        )
        before, counted = found["cpu"], count


def workers(root: Path) -> None:
    """Two processes against one, on ranks so large that starting them hardly matters."""
    _simulate(root / "sixteen", 16, "--target-size", "30MB")
    ratios = []
    for turn in range(3):
        two = _measure(root / "sixteen", root / f"two{turn}", "processes", workers=2)
        one = _measure(root / "sixteen", root / f"one{turn}", "serial")
        ratios.append(two["cpu"] / one["cpu"])
    print(f"16 ranks of {one['json'] / 16e6:.0f} MB: CPU of two processes {sorted(ratios)[1]:.2f} x serial")


def again(root: Path) -> None:
    """A second opening reads the columns it needs."""
    _simulate(root / "eight", 8, "--target-size", "50MB")
    first = _measure(root / "eight", root / "c", "serial")
    second = _measure(root / "eight", root / "c", "serial")
    whole = sum(file.stat().st_size for file in (root / "c").rglob("*") if file.is_file())
    print(
        f"8 ranks, {first['json'] / 1e6:.0f} MB of JSON: first opening {first['wall']:.1f} s, second "
        f"{second['wall']:.2f} s, reading {second['read'] / 1e6:.1f} MB of {whole / 1e6:.1f} MB of tables"
    )


def memory(root: Path) -> None:
    """One large rank."""
    _simulate(root / "big", 1, "--target-size", "2GB")
    big = _measure(root / "big", root / "d", "serial")
    print(f"one rank of {big['json'] / 1e6:.0f} MB of JSON: peak memory {big['peak'] / 1e6:.0f} MB")


def main() -> None:
    for part in (summary, ranks, workers, again, memory):
        with tempfile.TemporaryDirectory() as scratch:
            part(Path(scratch))


if __name__ == "__main__":
    main()

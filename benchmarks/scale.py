"""How reading grows with ranks, with file size and with workers, and what a second opening costs; on simulated traces.

- ranks: CPU seconds per rank and the parent's peak memory at 16, 64 and 256 ranks, with two workers.
- workers: CPU seconds of two processes against a serial run of the same ranks.
- memory: the peak of reading one rank of 2 GB of JSON.
- second open: 8 ranks of 50 MB, tables in the cache: seconds beyond imports to `device_time`, and the bytes read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_CHILD = """
import json, os, re, resource, sys, time
from pathlib import Path
import rankscope, rankscope.pipeline, rankscope.analyses
folder, executor, names, workers = sys.argv[1], sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])
rankscope.analyses.all_analyses()
import polars, polars.io
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024
def read():
    return int(re.search(r"rchar: (\\d+)", Path("/proc/self/io").read_text()).group(1))
began, before = time.perf_counter(), read()
run = rankscope.open(folder, executor=executor, workers=workers or None)
run.analyze(*names)
wall = time.perf_counter() - began
# Workers are children of the fork server: their CPU time is known once it has ended and was waited for.
from multiprocessing import forkserver
forkserver._forkserver._stop()
cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"cpu": cpu, "wall": wall, "peak": status("VmHWM"), "read": read() - before,
                  "json": sum(t.json_bytes for t in run.traces)}))
"""


def _measure(
    folder: Path, cache: Path, executor: str, names: str = "device_time", workers: int = 0
) -> dict[str, float]:
    environment = dict(os.environ, RANKSCOPE_CACHE=str(cache), POLARS_MAX_THREADS="1", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), executor, names, str(workers)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1200,
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


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        print(f"{'ranks':>6} {'JSON MB':>8} {'CPU s':>7} {'CPU s/rank':>11} {'parent MB':>10} {'two/serial':>11}")
        for ranks in (16, 64, 256):
            _simulate(root / f"r{ranks}", ranks)
            two = _measure(root / f"r{ranks}", root / f"a{ranks}", "processes", workers=2)
            serial = _measure(root / f"r{ranks}", root / f"b{ranks}", "serial") if ranks <= 64 else None
            ratio = f"{two['cpu'] / serial['cpu']:11.2f}" if serial else f"{'':11}"
            print(
                f"{ranks:6} {two['json'] / 1e6:8.0f} {two['cpu']:7.1f} {two['cpu'] / ranks:11.4f}"
                f" {two['peak'] / 1e6:10.0f} {ratio}",
                flush=True,
            )
        _simulate(root / "eight", 8, "--target-size", "50MB")
        first = _measure(root / "eight", root / "c", "serial")
        again = _measure(root / "eight", root / "c", "serial")
        whole = sum(file.stat().st_size for file in (root / "c").rglob("*") if file.is_file())
        print(
            f"8 ranks, {first['json'] / 1e6:.0f} MB of JSON: first opening {first['wall']:.1f} s, second "
            f"{again['wall']:.2f} s, reading {again['read'] / 1e6:.1f} MB of {whole / 1e6:.1f} MB of tables"
        )
        _simulate(root / "big", 1, "--target-size", "2GB")
        big = _measure(root / "big", root / "d", "serial")
        print(f"one rank of {big['json'] / 1e6:.0f} MB of JSON: peak memory {big['peak'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()

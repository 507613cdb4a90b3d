"""A long job: two ranks, two hundred windows, rotation on. Memory and files do not grow, and nothing is printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, read_trace, steps_in, traces

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")]
WINDOWS = 200

JOB = """
import json, os, sys, torch, torch.distributed as dist, rankscope
from pathlib import Path
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(8)]))
optimizer = torch.optim.Adam(model.parameters())
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
seen = []
with rankscope.Profiler("run", wait=1, warmup=1, active=2, repeat=0, keep_windows=3, record_shapes=True) as prof:
    for step in range(4 * WINDOWS):
        model(torch.ones(16, 32)).sum().backward(); optimizer.step(); optimizer.zero_grad()
        prof.step()
        if prof._queue.busy:
            prof._writer.drain(60)
        if step % 4 == 3:
            seen.append((resident(), sum(p.is_file() for p in Path("run").rglob("*"))))
    dist.barrier()
del model; import gc; gc.collect()
Path(f"seen{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
"""


def test_two_hundred_windows(tmp_path):
    (tmp_path / "job.py").write_text(JOB.replace("WINDOWS", str(WINDOWS)))
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"]
    done = subprocess.run(line, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr.replace("OMP_NUM_THREADS", ""), done.stderr
    kept = []
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"seen{rank}.json").read_text())
        memory = [resident for resident, _ in seen]
        assert len(memory) == WINDOWS
        # The allocator takes its time to have what it needs.
        settled = memory[WINDOWS // 4 : WINDOWS // 2]
        latest = memory[-WINDOWS // 4 :]
        assert max(latest) <= 1.05 * max(settled), (max(settled), max(latest))
        files = [count for _, count in seen[10:]]
        # Three traces a rank, one of each that is being written or is to go, the manifests and what replaces them.
        assert max(files) <= 2 * (3 + 2) + 3 + 2
        manifest = read_rank_manifest(tmp_path / "run" / "ranks" / f"rank{rank}.json")
        assert (len(manifest.written), manifest.rotated) == (3, WINDOWS - 3)
        assert (manifest.skipped, manifest.failed, manifest.warnings) == ((), (), ())
        assert len(manifest.clock_anchors) <= 200
        kept += [trace.file for trace in manifest.written]
    assert traces(tmp_path / "run") == sorted(kept)
    for name in kept:
        assert len(steps_in(read_trace(tmp_path / "run" / name))) == 2
    assert not list((tmp_path / "run").rglob(".*"))

"""A DDP job with three captures, run under torchrun by test_jobs.py: ``ddp_job.py OUT``.

1. chosen ranks, with a mesh; 2. the same directory once more; 3. a directory of its own for each "host".
"""

from __future__ import annotations

import gc
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import rankscope

warnings.simplefilter("error")


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))
    pair = dist.new_group([0, 1])
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32))
    # Small buckets: two of them, the last layer's first.
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.005)

    def train(profiler: rankscope.Profiler, steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(4, 64)).sum().backward()
            if rank < 2:
                dist.all_reduce(torch.ones(2), group=pair)
            parts = [torch.empty(5, dtype=torch.float64) for _ in range(size)]
            dist.all_gather(parts, torch.ones(5, dtype=torch.float64))
            profiler.step()

    for _ in range(2):
        with rankscope.Profiler(f"{out}/shared", ranks="0, 2", wait=1, warmup=1, active=2, mesh=mesh) as profiler:
            train(profiler, 6)
    with rankscope.Profiler(f"{out}/host{rank}", wait=1, warmup=1, active=2, record_shapes=True) as profiler:
        train(profiler, 6)


if __name__ == "__main__":
    main(sys.argv[1])
    # The model with its group goes first: else a thread of gloo may meet the interpreter's end, and abort.
    gc.collect()
    dist.destroy_process_group()

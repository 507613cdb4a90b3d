"""A small real job in one of several ways: ``real_job.py OUT ddp|fsdp|eager|compiled``; see test_real_jobs.py.

Two ranks train the same blocks under DDP or sharded by FSDP2, recorded from before the model is there; or one process
trains a transformer as it is written, or compiled, with the compiler's kernels named in the trace.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn

import rankscope

WIDTH, BLOCKS, STEPS = 512, 6, 4
PARAMETERS = BLOCKS * (WIDTH * WIDTH + WIDTH) * 4
"""Bytes of the blocks' parameters."""


def blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))


def distributed(out: str, *, sharded: bool) -> None:
    dist.init_process_group("gloo")
    with rankscope.Profiler(
        out, wait=0, warmup=0, active=STEPS, repeat=1, profile_memory=True, record_shapes=True
    ) as p:
        model: nn.Module = blocks()
        if sharded:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in model.children():
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        # One by one: what foreach gathers beside the states would hide how large these are.
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(STEPS):
            model(torch.ones(4, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            p.step()
    # Else a thread of gloo may meet the interpreter's end, and abort (docs/capture.md).
    del model
    gc.collect()
    dist.destroy_process_group()


def alone(out: str, *, compiled: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.Sequential(layer, nn.Linear(64, 64))
    if compiled:
        import torch._inductor.config as inductor

        inductor.cpp.enable_kernel_profile = True
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rankscope.Profiler(out, wait=2, warmup=1, active=STEPS, repeat=1, record_shapes=True) as profiler:
        for _ in range(3 + STEPS + 1):
            model(torch.ones(4, 16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    where, way = sys.argv[1:]
    torch.set_num_threads(1)
    if way in ("ddp", "fsdp"):
        distributed(where, sharded=way == "fsdp")
    else:
        alone(where, compiled=way == "compiled")

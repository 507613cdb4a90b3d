"""FSDP2, tensor parallelism or a pipeline with NCCL, recorded and watched; a rank may be late by 40 ms per step.

Run: ``parallel_job.py CASE LATE_RANK RUN_DIRECTORY`` under torchrun; its ranks may share one device.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from tests.gpu.sharing import share_device
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import rankscope

CASE, LATE_RANK, DIRECTORY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())
WIDTH, BATCH, LATE_S = 512, 64, 0.04
STEPS = 40


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.second(torch.relu(self.first(value)))


def train_pipeline(profiler: rankscope.Profiler) -> None:
    blocks = nn.Sequential(Block(), Block()).to(DEVICE)
    stage = PipelineStage(blocks, RANK, WORLD_SIZE, DEVICE)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda found, wanted: (found - wanted).square().mean())
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    batch = torch.ones(BATCH, WIDTH, device=DEVICE)
    for _ in range(STEPS):
        time.sleep(LATE_S if RANK == LATE_RANK else 0)
        if RANK == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch) if RANK == WORLD_SIZE - 1 else schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        profiler.step()


def train(profiler: rankscope.Profiler) -> None:
    blocks = nn.Sequential(*(Block() for _ in range(3))).to(DEVICE)
    mesh = init_device_mesh("cuda", (WORLD_SIZE,), mesh_dim_names=("dp" if CASE == "fsdp" else "tp",))
    for block in blocks:
        if CASE == "fsdp":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    if CASE == "fsdp":
        fully_shard(blocks, mesh=mesh)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    batch = torch.ones(BATCH, WIDTH, device=DEVICE)
    for _ in range(STEPS):
        time.sleep(LATE_S if RANK == LATE_RANK else 0)
        loss = blocks(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        profiler.step()


def main() -> None:
    share_device(RANK)
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    torch.manual_seed(0)
    with rankscope.Profiler(DIRECTORY, watch=True, wait=20, warmup=2, active=10, repeat=1) as profiler:
        if CASE == "pipeline":
            train_pipeline(profiler)
        else:
            train(profiler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

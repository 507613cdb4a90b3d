"""The reference run: two ranks, two steps, small enough to work out by hand, with something for every analysis."""

from __future__ import annotations

from pathlib import Path

from tests import kineto

GROUP = (0, 1)


def write_reference(folder: Path) -> Path:
    """Its traces, in a folder."""
    return kineto.write_ranks(folder, {rank: rank_events(rank) for rank in (0, 1)})


def rank_events(rank: int) -> list[kineto.Event]:
    """Two steps of 1 ms; rank 1 spends 150 µs more of each in its loader, so rank 0 waits in its collectives."""
    events: list[kineto.Event] = [
        # Launched before recording began, still running as it did.
        kineto.kernel("backlog_gemm", 900, 150),
        kineto.memset(1060, 10, size=4096),
    ]
    for step in (10, 11):
        events += [*_step(step, rank), *_memory(step, rank)]
    return events


def _memory(number: int, rank: int) -> list[kineto.Event]:
    """A tensor that comes and goes, and one that each step keeps; rank 1 has half of what rank 0 has."""
    at = 1000.0 + 1000.0 * (number - 10) + 150.0 * rank
    half, held = 1 + rank, 4_000_000 // (1 + rank) + (number - 10) * 65_536
    return [
        kineto.memory(at + time, size, allocated=held + change, reserved=16_777_216 // half, address=address)
        for time, size, change, address in (
            (112.0, 1_048_576, 1_048_576, 1 << 40),
            (130.0, 65_536, 1_114_112, (1 << 41) + number),
            (250.0, -1_048_576, 65_536, 1 << 40),
        )
    ]


def _step(number: int, rank: int) -> list[kineto.Event]:
    at = 1000.0 + 1000.0 * (number - 10)
    late = 150.0 * rank
    ids = 100 * number
    shape = [[64, 512], [512, 512]]
    return [
        kineto.step(number, at, 1000),
        kineto.step(number, at + 80, 900, on_device=True, tid=7),
        kineto.loading(at + 5, 40 + late),
        kineto.op("aten::to", at + 60 + late, 20, external=ids + 1, dims=[[64, 512]]),
        kineto.launch(at + 65 + late, 10, name="cudaMemcpyAsync", correlation=ids + 1, external=ids + 1),
        kineto.memcpy(at + 80 + late, 30.5, correlation=ids + 1, external=ids + 1, size=131072),
        kineto.op("aten::linear", at + 100 + late, 60, dims=shape),
        kineto.op("aten::mm", at + 110 + late, 40, external=ids + 2, dims=shape),
        kineto.launch(at + 120 + late, 8, correlation=ids + 2, external=ids + 2),
        kineto.kernel(
            "ampere_sgemm_128x64_nn", at + 140 + late, 200.25, correlation=ids + 2, external=ids + 2,
            **{"blocks per SM": 0.5, "est. achieved occupancy %": 40},
        ),
        kineto.op("aten::mm", at + 200 + late, 30, external=ids + 3, dims=shape, tid=kineto.BACKWARD_THREAD),
        kineto.launch(at + 205 + late, 8, correlation=ids + 3, external=ids + 3, tid=kineto.BACKWARD_THREAD),
        kineto.kernel(
            "ampere_sgemm_128x64_nn", at + 350 + late, 150, correlation=ids + 3, external=ids + 3,
            **{"blocks per SM": 1.5, "est. achieved occupancy %": 80},
        ),
        # The all_reduce starts as soon as a rank is there and ends on both at once; the gather carries no metadata.
        kineto.op("record_param_comms", at + 300 + late, 5, external=ids + 4),
        kineto.launch(at + 301 + late, 4, correlation=ids + 4, external=ids + 4),
        kineto.collective(
            at + 400 + late, 300 - late, elements=262144, sequence=2 * (number - 10), correlation=ids + 4,
            external=ids + 4, stream=20, ranks=GROUP,
        ),
        kineto.op(
            "record_param_comms", at + 320 + late, 5, external=ids + 5,
            **{
                "Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 2000, "Group size": 2,
                "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg",
                "Process Group Ranks": "[0, 1]",
            },
        ),
        kineto.launch(at + 321 + late, 4, correlation=ids + 5, external=ids + 5),
        kineto.kernel(
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", at + 720, 60.125, stream=20,
            correlation=ids + 5, external=ids + 5,
        ),
        kineto.op("Optimizer.step", at + 850, 40),
        kineto.annotation("Optimizer.step#SGD.step", at + 845, 50),
    ]  # fmt: skip

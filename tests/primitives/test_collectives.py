"""Which collective a name speaks of, and how wide an element is."""

from __future__ import annotations

import pytest

from rankscope.primitives.collectives import collective_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # kernels' metadata and c10d's operators
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("broadcast", "broadcast"),
        ("_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("barrier", "barrier"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("c10d::recv_", "recv"),
        # ranges
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:send", "send"),
        ("nccl:send 0->1", "send"),
        ("nccl:_all_gather_base", "all_gather"),
        # kernels
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 8>(uint32_t**)", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>(float*)", "all_reduce"),
        ("all2all_a2a_dispatch", "all_to_all"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "dispatch"),
        ("void deep_ep::internode_ll::combine<false, 7168>(void*)", "combine"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "notify"),
        ("xccl:all_reduce", "all_reduce"),
        ("nccl:coalesced", "coalesced"),
        # none of them
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("wait", None),
        ("", None),
        ("gemm(allreduce)", None),
    ],
)
def test_kinds(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind

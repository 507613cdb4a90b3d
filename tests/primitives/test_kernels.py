"""Which kernels communicate, by their names: as libraries and engines write them."""

from __future__ import annotations

import pytest

from rankscope.primitives.kernels import communication_names

COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)",
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "oneccl_allreduce_large_buf<float>",
    "hcclAllReduce_kernel",
    "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<nv_bfloat16, 8>(RankData*, RankSignals)",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)",
    "void internode_ll::dispatch<true, false, 7168>(void*, float*)",
    "void internode::notify_dispatch<true, 8>(int const*)",
    "deepep_low_latency_combine",
    "nvshmemi_transfer_rma<(threadgroup_t)0>(void*, void*)",
    "void nvshmemi_barrier_on_stream_kernel(int)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float>(float*)",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 8>(uint32_t**)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>(float**)",
    "void trtllm_allreduce_fusion::oneShotAllReduceKernel<half>(AllReduceParams)",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<float>(AllReduceParams)",
    "symm_mem_copy_engine_signal",
    "void flashinfer::all_to_all_dispatch(int)",
    "moeAllToAllKernel",
    "void aiter::reduce_scatter_cross_device_store<__half, 8>(RankData*)",
    "allgather_push_kernel",
    "SendRecv_ring_simple",
]
COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(int)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(float)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(long*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
    "void cunn_ClassNLLCriterion_updateGradInput_kernel<float>",
    "ampere_sgemm_128x64_nn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
    "triton_red_fused__to_copy_mul_sum_3",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16",
    "void small_reduce_kernel<float>(float*)",
    "SmallGatherKernel",
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<float>(int)",
    "_finalize_matmul_scatter_bf16",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    "broadcast_add_kernel",
    "",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication(name: str) -> None:
    assert communication_names([name]) == {name}


@pytest.mark.parametrize("name", COMPUTE)
def test_compute(name: str) -> None:
    assert communication_names([name]) == set()


def test_case_does_not_matter() -> None:
    assert communication_names(["NCCLDEVKERNEL_X", "Cross_Device_Reduce"]) == {"NCCLDEVKERNEL_X", "Cross_Device_Reduce"}


def test_the_user_adds_names() -> None:
    names = ["my_ring_copy", "gemm", "ncclKernel"]
    assert communication_names(names, extra="^MY_ring") == {"my_ring_copy", "ncclKernel"}


@pytest.mark.parametrize("extra", ["(?i)my_ring", "my_ring|other", "(my)_(ring)", "(?x) my_ring  # ours"])
def test_the_users_pattern_may_have_flags_groups_and_alternatives(extra: str) -> None:
    assert communication_names(["my_ring_copy", "gemm", "ncclKernel"], extra=extra) == {"my_ring_copy", "ncclKernel"}

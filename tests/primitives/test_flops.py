"""FLOPs from shapes: by hand, and against torch's own counter on what it really ran."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import rankscope
from rankscope.primitives import device_peaks
from rankscope.primitives.device_peaks import peak_flops
from rankscope.primitives.flops import operator_flops
from rankscope.primitives.tensor_cores import (
    eligible_operators,
    ordinary_products,
    tensor_core_use,
)

NONE = ["", "", "", ""]


def flops(name: str, dims: object, concrete: list[str] | None = None) -> float | None:
    text = dims if isinstance(dims, str) else json.dumps(dims)
    row = {"name": name, "input_dims": text, "concrete_inputs": json.dumps(concrete) if concrete else None}
    found: float | None = operator_flops(pl.DataFrame([row], schema=dict.fromkeys(row, pl.String)))[0]
    return found


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "wanted"),
    [
        ("aten::mm", [[3, 4], [4, 5]], None, 2 * 3 * 4 * 5),
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], None, 2 * 3 * 4 * 5),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], None, 7 * 2 * 3 * 4 * 5),
        ("aten::baddbmm", [[7, 3, 5], [7, 3, 4], [7, 4, 5]], None, 7 * 2 * 3 * 4 * 5),
        ("aten::mv", [[3, 4], [4]], None, 2 * 3 * 4),
        # 32 wide, 3×3, stride 2, padding 1: 16 out.
        ("aten::conv2d", [[2, 3, 32, 32], [8, 3, 3, 3]], ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"],
         2 * 2 * 16 * 16 * 8 * 3 * 9),
        ("aten::conv1d", [[2, 4, 10], [6, 2, 3]], ["", "", "", "[1]", "same", "[1]", "2"], 2 * 2 * 10 * 6 * 2 * 3),
        ("aten::miopen_convolution", [[2, 3, 32, 32], [8, 3, 3, 3]],
         ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"], 2 * 2 * 16 * 16 * 8 * 3 * 9),
        ("aten::cudnn_convolution", [[2, 3, 32, 32], [8, 3, 3, 3]], ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"],
         2 * 2 * 16 * 16 * 8 * 3 * 9),
        # Transposed: what counts is the input's extent.
        ("aten::convolution", [[2, 8, 16, 16], [8, 3, 2, 2]],
         ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"], 2 * 2 * 16 * 16 * 8 * 3 * 4),
        ("aten::convolution_backward", [[2, 8, 16, 16], [2, 3, 32, 32], [8, 3, 3, 3]],
         ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]"],
         2 * 2 * 16 * 16 * 8 * 3 * 9),
        # Two key heads for four query heads.
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 10, 8], [2, 2, 12, 8], [2, 2, 12, 6]], None,
         2 * 2 * 4 * 10 * 12 * (8 + 6)),
        ("aten::_flash_attention_forward", [[2, 10, 4, 8], [2, 12, 2, 8], [2, 12, 2, 6]], None,
         2 * 2 * 4 * 10 * 12 * (8 + 6)),
        ("aten::_scaled_dot_product_flash_attention_backward",
         [[2, 4, 10, 8], [2, 4, 10, 8], [2, 4, 12, 8], [2, 4, 12, 8]], None, 2 * 2 * 4 * 10 * 12 * (3 * 8 + 2 * 8)),
        ("aten::relu", [[3, 4]], None, None),
        ("aten::mm", [[3, 4], [5, 6]], None, None),
        ("aten::mm", [[], []], None, None),
        ("aten::conv2d", [[2, 3, 32, 32], [8, 3, 3, 3]], None, None),
        ("aten::conv2d", [[2, 3, 32, 32], [8, 3, 3, 3]], ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"], None),
        ("aten::mm", "not JSON", None, None),
        ("aten::mm", "[[1e3, 4], [4, 5]]", None, None),
        ("aten::mm", [[1 << 40, 1 << 40], [1 << 40, 1]], None, None),
        ("aten::mm", {"a": 1}, None, None),
        ("aten::mm", [[-3, 4], [4, 5]], None, None),
    ],
)  # fmt: skip
def test_by_hand(name: str, dims: object, concrete: list[str] | None, wanted: int | None) -> None:
    assert flops(name, dims, concrete) == wanted


@pytest.mark.slow
def test_against_torchs_counter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
        torch.nn.Conv2d(4, 4, 3, padding="same", dilation=2), torch.nn.Flatten(), torch.nn.Linear(4 * 16 * 16, 12),
    )  # fmt: skip
    query = torch.randn(2, 4, 10, 8, requires_grad=True)

    def work() -> None:
        net(torch.randn(2, 3, 16, 16, requires_grad=True)).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
        torch.baddbmm(torch.zeros(2, 3, 5), torch.zeros(2, 3, 4), torch.zeros(2, 4, 5))

    with FlopCounterMode(display=False) as counter:
        work()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    frame = rankscope.open(tmp_path, executor="serial").operators()
    found = dict(frame.select("name", "flops").rows())
    counted = {str(key): value for key, value in counter.get_flop_counts()["Global"].items()}
    for torchs, ours in (
        ("aten.mm", "aten::mm"), ("aten.addmm", "aten::addmm"), ("aten.baddbmm", "aten::baddbmm"),
        ("aten.convolution", "aten::convolution"), ("aten.convolution_backward", "aten::convolution_backward"),
    ):  # fmt: skip
        assert found[ours] == counted[torchs], ours
    # torch's counter knows no formula for the CPU's attention: that of the others, forward and backward.
    assert found["aten::_scaled_dot_product_flash_attention_for_cpu"] == 2 * 2 * 4 * 10 * 10 * 16
    assert found["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] == 2 * 2 * 4 * 10 * 10 * 40


def test_peaks() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756.5e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", tensor_cores=True) == 156e12
    assert peak_flops("AMD Instinct MI300X VF", "float32", tensor_cores=True) == 163.4e12
    assert peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak_flops("Some Device", "float32") is peak_flops(None, "float32") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", None) is None


@pytest.mark.parametrize(
    ("device", "units", "operations", "gigahertz"),
    [
        # Multiprocessors (compute units), operations a clock of one of them in 16 bits, boost clock.
        ("Tesla V100-SXM2-16GB", 80, 1024, 1.53),
        ("Tesla T4", 40, 1024, 1.59),
        ("NVIDIA A100-SXM4-80GB", 108, 2048, 1.41),
        ("NVIDIA A10", 72, 1024, 1.695),
        ("NVIDIA A40", 84, 1024, 1.74),
        ("NVIDIA L4", 58, 1024, 2.04),
        ("NVIDIA L40S", 142, 1024, 2.52),
        ("NVIDIA H100 80GB HBM3", 132, 4096, 1.83),
        ("Quadro GP100", 56, 256, 1.442),
        ("AMD Instinct MI300X", 304, 2048, 2.1),
        ("AMD Instinct MI250X", 110, 1024, 1.7),
        ("AMD Instinct MI250", 104, 1024, 1.7),
        ("AMD Instinct MI350X", 256, 4096, 2.2),
        ("AMD Instinct MI355X", 256, 4096, 2.4),
    ],
)
def test_peaks_are_units_times_operations_times_clock(
    device: str, units: int, operations: int, gigahertz: float
) -> None:
    assert peak_flops(device, "float16") == pytest.approx(units * operations * gigahertz * 1e9, rel=0.015)


@pytest.mark.parametrize(
    ("device", "bfloat16"),
    [
        # Names that hold another's: other clocks, other dies, or a part of a card.
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA L40", None),
        ("NVIDIA T400 4GB", None),
        ("Tesla V100-FHHL-16GB", None),
        ("AMD Instinct MI300A", None),
        ("Intel(R) Data Center GPU Max 1550", None),
    ],
)
def test_peaks_of_names_alike(device: str, bfloat16: float | None) -> None:
    assert peak_flops(device, "bfloat16") == bfloat16


def test_every_peak_says_where_it_was_read() -> None:
    text = (Path(device_peaks.__file__).parent / "device_peaks.json").read_text(encoding="utf-8")
    for each in json.loads(text)["devices"]:
        assert each["source"]
        assert each["read"].startswith("https://")


def test_names_of_tensor_cores() -> None:
    used = {
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_g1_tensor16x8x8_execute",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3",
        # CUTLASS 3: the kernel of `_grouped_mm`, vLLM's scaled product, FlashInfer's in 4 bits, flash attention 3.
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
        "cutlass::gemm::GroupProblemShape<>, cutlass::gemm::collective::CollectiveMma<"
        "cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<4>>>>>",
        "_ZN7cutlass13device_kernelIN49_GLOBAL__N__8bf0e19b_16_scaled_mm_c3x_cu_2bec3df915cutlass_3x_gemmIaNS_6half_t"
        "NS_4gemm32KernelTmaWarpSpecializedPingpongE",
        "_ZN7cutlass13device_kernelIN10flashinfer4gemm50DeviceGemmFp4GemmSm100_float_128_INS_4gemm6kernel13GemmUniversalI"
        "NS5_10collective13CollectiveMmaINS5_46MainloopSm100TmaUmmaWarpSpecializedBlockScaledI",
        "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90I",
        "void cutlass::Kernel2<cutlass::gemm::kernel::GemmUniversal<MmaMultistage<x, cutlass::gemm::warp::MmaTensorOp<",
        "cutlass3x_sm100_bstensorop_s128x128x64gemm_block_scaled_ue4m3xf4", "nvjet_sm100_tst_128x8_64x12_2x1_v_bz_TNT",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1u>", "void gptq_marlin::Marlin<half>",
        "bmm_E2m1_E2m1E2m1_Fp32_bA16_bB16_bC16", "fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0>",
    }  # fmt: skip
    not_used = {
        "ampere_sgemm_128x64_nn", "void at::native::elementwise_kernel<128, 4>",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
        "sm80_xmma_wgrad_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x128x8_g1_ffma_execute",
        "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "SubTensorOpWithScalar1d",
        "void cutlass::Kernel<cutlass::gemm::kernel::GemmUniversal<MmaPipelined<x, cutlass::gemm::warp::MmaSimt<",
        "void flash::flash_fwd_splitkv_combine_kernel<x>",
        "void flash::FlashAttnBwdPostprocessConvertdQ<cute::TiledMMA>",
    }  # fmt: skip
    assert {name for name, use in tensor_core_use(used | not_used).items() if use} == used


def test_names_that_do_not_tell_are_neither() -> None:
    unknown = {
        "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10colle", "kernel_no_tc",
        "fused_moe_kernel", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "triton_tem_fused_addmm_native_layer_norm_0",
        "triton_red_fused_mm_0", "Cijk_Alik_Bljk_HB_GB_MT64x64x16_SE_K1", "void flashinfer::BatchDecodeKernel<x>",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)",
    }  # fmt: skip
    no = {
        "ampere_sgemm_128x64_nn": True,
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)": True,
        "triton_poi_fused_add_0": False, "void at::native::elementwise_kernel<128, 4>": False,
        "void gemv2T_kernel_val<int>": False, "void gemmk1_kernel<float, 256>": False,
        "void at::native::(anonymous namespace)::softmax_warp_forward<float>": False,
    }  # fmt: skip
    found = tensor_core_use([*unknown, *no])
    assert {name for name, use in found.items() if use is None} == unknown
    assert {name for name, use in found.items() if use is False} == set(no)
    assert ordinary_products(found) == {name for name, product in no.items() if product}


def test_names_of_operators_that_tensor_cores_can_run() -> None:
    eligible = {
        "aten::mm", "aten::addmm", "aten::linear", "aten::conv2d", "aten::convolution_backward", "aten::_convolution",
        "aten::cudnn_convolution", "aten::miopen_convolution", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm",
        "aten::scaled_dot_product_attention", "aten::_flash_attention_forward", "AddmmBackward0",
    }  # fmt: skip
    others = {
        "aten::add",
        "aten::copy_",
        "aten::relu",
        "aten::convert",
        "aten::norm",
        "aten::mul",
        "record_param_comms",
    }
    assert eligible_operators(eligible | others) == eligible

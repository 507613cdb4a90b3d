import { expect, test } from "vitest";
import { foldedName, labelName } from "../src/format/short_name.ts";

const ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>>(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)";
const MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int, at::detail::Array<char*, 3>)";
const COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}>(at::TensorIteratorBase&)>(int)";
const MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>>(at::native::ReduceOp<float>)";
const GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(cutlass_80_tensorop_bf16_s16816gemm::Params)";

test("kernels of one wrapper have names that differ by what they run", () => {
  expect([ADD, MUL, COPY, MEAN].map(labelName)).toEqual([
    "CUDAFunctor_add, vectorized_elementwise_kernel", "MulFunctor, vectorized_elementwise_kernel", "direct_copy_kernel_cuda, elementwise_kernel", "MeanOps, reduce_kernel",
  ]);
  expect(foldedName(ADD)).toBe("vectorized_elementwise_kernel<CUDAFunctor_add>");
  expect(labelName(GEMM)).toBe("tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8");
});

test("namespaces, parameters and what a kind shares are left out", () => {
  expect(foldedName("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out>(int)")).toBe("elementwise_kernel_with_index<arange_cuda_out>");
  expect(foldedName("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")).toBe("ncclDevKernel_AllReduce_Sum_bf16_RING_LL");
  expect(labelName("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")).toBe("AllReduce_Sum_bf16_RING_LL");
  expect(foldedName("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>, false>(Flash_fwd_params)")).toBe("flash_fwd_kernel");
  expect(labelName("autograd::engine::evaluate_function: MmBackward0")).toBe("MmBackward0");
  expect(labelName("aten::mm")).toBe("mm");
  expect(foldedName("aten::mm")).toBe("aten::mm");
  expect(labelName("/usr/lib/python3/torch/nn/modules/module.py(1501): _call_impl")).toBe("module.py(1501): _call_impl");
});

test("other names stay as they are", () => {
  for (const name of ["Memcpy HtoD (Pinned -> Device)", "Memset (Device)", "ProfilerStep#12", "<img src=x onerror=alert(1)>", "", "forward (block 3)", "aten::", "cudaLaunchKernel", "## Call CompiledFxGraph f(x) ##", "nccl:"]) {
    expect(foldedName(name)).toBe(name);
  }
  expect(labelName("nccl:")).toBe("nccl:");
  expect(labelName("cudaLaunchKernel")).toBe("cudaLaunchKernel");
});

test("long hostile names take no time to speak of", () => {
  const name = `void ${"a::b<(".repeat(20_000)}`;
  expect(labelName(name).length).toBeLessThanOrEqual(4000);
});

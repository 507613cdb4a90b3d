/**
 * Names of events with what all such names share left out: return type, namespaces, parameters and template arguments of C++,
 * folders of Python files. Names are untrusted: scanned once, never by an expression that could backtrack.
 */

const LONGEST = 4000;
const NAMESPACES = /(?:\(anonymous namespace\)|<unnamed>|\{anonymous\}|[A-Za-z_]\w*)::/g;
/** Kernels whose own name says little: what they run is among their template arguments. */
const WRAPPER = /^(?:Kernel2?|device_kernel|cutlass_kernel|reduce_kernel|multi_tensor_apply_kernel|\w*elementwise_kernel\w*|\w*index_kernel\w*)$/;
/** Template arguments that say nothing of what runs. */
const PLUMBING = new Set([
  "float", "double", "int", "long", "short", "char", "bool", "unsigned", "const", "true", "false", "void", "auto", "lambda", "operator", "typename", "struct", "class",
  "Half", "half", "__half", "BFloat16", "bfloat16_t", "half_t", "nv_bfloat16", "__nv_bfloat16", "Array", "array", "ReduceOp", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor",
  "func_wrapper_t", "TensorListMetadata", "TensorListScalarListMetadata", "FusedOptimizerTensorListMetadata", "TensorIteratorBase", "TensorIterator", "Tensor",
  "TrivialOffsetCalculator", "OffsetCalculator", "LoadWithoutCast", "StoreWithoutCast", "LoadWithCast", "StoreWithCast", "gpu_kernel_impl", "gpu_kernel_impl_nocast",
]);
/** What names of one kind begin with: next to their color and lane it tells nothing. */
const COMMON = /^(?:nccl(?:Dev)?Kernel_|nccl:|gloo:|aten::|autograd::engine::evaluate_function: |nn\.Module: |sm\d+_xmma_|cutlass_\d+_|ampere_|triton_(?:poi|red|per|tem)_fused_+(?=\w))/;

/** For a tooltip: `vectorized_elementwise_kernel<CUDAFunctor_add>`, `ncclDevKernel_AllReduce_Sum_f32_RING_LL`. */
export function foldedName(name: string): string {
  const { head, inner } = parsed(name);
  return inner === "" ? head : `${head}<${inner}>`;
}

/** For a label: `CUDAFunctor_add, vectorized_elementwise_kernel`, `AllReduce_Sum_f32_RING_LL`: what differs comes first. */
export function labelName(name: string): string {
  const { head, inner } = parsed(name);
  const text = inner === "" ? head : /^(?:Kernel2?|device_kernel|cutlass_kernel)$/.test(head) ? inner : `${inner}, ${head}`;
  const rest = text.replace(COMMON, "");
  return rest === "" ? text : rest;
}

function parsed(name: string): { head: string; inner: string } {
  const text = name.slice(0, LONGEST);
  const frame = /^(?:[^()]*[\\/])?([^\\/()]+\.pyx?\(\d+\): .*)$/.exec(text);
  if (frame) return { head: frame[1]!, inner: "" };
  if (!/^[\w:~({<]/.test(text) || !/\w[<(]/.test(text)) return { head: text, inner: "" };
  const plain = text.replace(/^(?:void|auto) /, "").replace(NAMESPACES, (part) => (part === "aten::" ? part : ""));
  const open = plain.search(/\w[<(]/) + 1;
  if (open === 0) return { head: plain, inner: "" };
  const head = plain.slice(0, open);
  if (!/^[A-Za-z_~]\w*$/.test(head)) return { head: text, inner: "" }; // a sentence, not a function
  return { head, inner: plain[open] === "<" && WRAPPER.test(head) ? telling(plain.slice(open + 1)) : "" };
}

/** The first template argument that names what runs. */
function telling(rest: string): string {
  let found = "";
  for (const [word] of rest.matchAll(/[A-Za-z_]\w{3,}/g)) {
    if (PLUMBING.has(word)) continue;
    if (/Functor|Op|_kernel|gemm|Kernel/.test(word)) return word;
    found ||= word;
  }
  return found;
}

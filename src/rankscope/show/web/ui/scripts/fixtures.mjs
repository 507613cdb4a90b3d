/**
 * Writes made-up reports to look at and to test with: `node scripts/fixtures.mjs FOLDER`.
 *
 * Each is the built template with a payload in it, folded in as `rankscope report` does. The numbers are invented but hold
 * together (parts sum to their whole); no randomness but a seeded one, so two runs write the same bytes.
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const template = join(here, "../../../report/static/report.html");
const DATA_MARK = "/*RANKSCOPE_DATA*/";

function seeded(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const col = (unit, doc) => ({ unit, doc });
const ns = (doc) => col("ns", doc);

function analysis(title, doc, columns, rows, truncated = null) {
  const data = Object.fromEntries(Object.keys(columns).map((name, place) => [name, rows.map((row) => row[place] ?? null)]));
  return { title, doc, columns, data, truncated };
}

const KERNELS = [
  ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", 0.21],
  ["void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8::Params)", "compute", 0.19],
  ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "compute", 0.14],
  ["void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, false, true, false>(Flash_fwd_params)", "compute", 0.12],
  ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", 0.07],
  ["void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>>(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)", "compute", 0.06],
  ["triton_poi_fused__to_copy_add_mul_pow_rsqrt_7", "compute", 0.05],
  ["ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", 0.04],
  ["Memcpy DtoD (Device -> Device)", "memory", 0.02],
  ["void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>>(at::native::ReduceOp<float>)", "compute", 0.02],
  ["Memset (Device)", "memory", 0.004],
  ...Array.from({ length: 30 }, (_, i) => [`triton_red_fused_native_layer_norm_backward_${i}`, "compute", 0.01 / (i + 1)]),
];
const KINDS = [["all_reduce", "bfloat16", 17632384], ["all_reduce", "bfloat16", 5746640], ["all_gather", "bfloat16", 1048576], ["reduce_scatter", "float32", 4194304], ["broadcast", "int64", 512]];

export function makeRun({ ranks, steps = 4, seed = 1, late = 0, each = 24, most = 20_000, name = (text) => text, host = "node", id = null }) {
  const random = seeded(seed);
  const world = Array.from({ length: ranks }, (_, rank) => rank);
  const numbers = Array.from({ length: steps }, (_, step) => 10 + step);
  const devices = [], windows = [], calls = [], kernels = [];
  const alone = ranks === 1;
  for (const rank of world) {
    let sums = [0, 0, 0, 0];
    for (const step of numbers) {
      const slow = rank === late && !alone;
      const compute = 22_000_000 + Math.floor(random() * 900_000);
      const comm = alone ? 0 : slow ? 2_100_000 : 9_800_000 + Math.floor(random() * 1_200_000);
      const parts = [compute, comm, 410_000 + Math.floor(random() * 90_000), 31_000, 650_000 + Math.floor(random() * 120_000),
        slow ? 8_400_000 : 240_000 + Math.floor(random() * 60_000), 900_000 + Math.floor(random() * 200_000), 1_312_345];
      const window = parts.reduce((a, b) => a + b, 0);
      windows.push([rank, step - 10, step, 1_000_000 + (step - 10) * 36_500_000, window, step === 10 ? 120_000 : 0, ...parts]);
      sums = [sums[0] + compute, sums[1] + comm, sums[2] + parts[2] + parts[3], sums[3] + window];
      if (!alone) {
        for (let n = 0; n < each; n++) {
          const [kind, dtype, bytes] = KINDS[n % KINDS.length];
          const took = Math.floor(bytes / 120 + 14_000 + random() * 40_000) + (rank === late ? 0 : Math.floor(random() * 300_000));
          const start = 1_000_000 + (step - 10) * 36_500_000 + n * 1_400_000;
          calls.push([rank, name("default_pg"), ranks, (step - 10) * each + n, kind, dtype, bytes / 2, bytes / 2, bytes, 20, start - 90_000, start, start + took, took]);
        }
      }
    }
    const [compute, exposed, memory, span] = sums;
    const overlap = alone ? 0 : Math.floor(exposed * 0.19);
    devices.push([rank, span, compute + exposed + memory, compute, exposed + overlap, memory + 40_000, overlap, exposed, memory,
      span - compute - exposed - memory, alone ? null : overlap / (exposed + overlap)]);
    for (const [kernel, category, share] of KERNELS) {
      if (alone && category === "communication") continue;
      const count = 4 + Math.floor(random() * 90);
      const total = Math.floor(150_000_000 * share * (0.9 + random() * 0.2));
      kernels.push([rank, name(kernel), category, count, total, total / count, Math.floor(total / count / 2), Math.floor(total / count * 0.96), Math.floor(total / count * 1.9), total / count / 7]);
    }
  }
  const summary = KINDS.map(([kind, dtype, bytes]) => {
    const mine = calls.filter((call) => call[4] === kind && call[8] === bytes).map((call) => call[13]).sort((a, b) => a - b);
    const total = mine.reduce((a, b) => a + b, 0);
    return [name("default_pg"), ranks, kind, dtype, bytes, mine.length, total, total / mine.length, mine[0], mine[mine.length >> 1], mine.at(-1)];
  }).filter((row) => row[5] > 0);
  const first = devices[late === 0 ? devices.length - 1 : 0];
  const exposed = Math.floor(first[7] / steps);
  const analyses = {
    overview: analysis("Overview", "The run in one row.", {
      world_size: col("ranks", "Ranks the job ran on."), ranks: col("count", "Ranks whose traces were read."), steps: col("count", "Steps that the traces hold."),
      step_ns: ns("Median over the steps of the slowest rank's window."), mean_step_ns: ns("Mean window over all ranks and steps."), communication_ns: ns("Communication per step, mean over the ranks."), overlap_ratio: col("ratio", "Overlap over communication; null without communication."),
      exposed_communication_ns: ns("Communication that no compute hides, per step, mean over the ranks."), exposed_share: col("ratio", "Exposed communication over the step's time."),
      slowest_rank: col("", "The rank with the most time of its own."), slowest_margin_ns: ns("How much more that is than the median of the other ranks, per step."),
    }, [[ranks, ranks, steps, 36_212_345, 36_300_000, alone ? 0 : 12_345_678, alone ? null : 0.1596, exposed, exposed / 36_300_000, alone ? null : late, alone ? null : 7_912_044]]),
    device_time: analysis("Device time", "Where each rank's device spends its time, as lengths of unions of intervals.\n\n`busy = compute + exposed_communication + exposed_memory`, exactly:\n\n    overlap               = |communication ∩ compute|\n    exposed_communication = |communication| - overlap\n    idle                  = span - busy\n\nAll streams of the rank's device count.", {
      rank: col("", "Rank."), span_ns: ns("Last end less first start of the device's events."), busy_ns: ns("Union of all device events."), compute_ns: ns("Union of compute kernels."),
      communication_ns: ns("Union of communication kernels."), memory_ns: ns("Union of copies and sets."), overlap_ns: ns("Communication under compute."), exposed_communication_ns: ns("Communication that no compute hides."),
      exposed_memory_ns: ns("Memory work that neither compute nor communication hides."), idle_ns: ns("Nothing runs."), overlap_ratio: col("ratio", "Overlap over communication; null without communication."),
    }, devices),
    step_time: analysis("Step time", "What fills each step's window, from completion to completion; the parts sum to `window_ns` exactly.", {
      rank: col("", "Rank."), window: col("", "Number of the window in the file."), step: col("", "ProfilerStep# number; null: the whole file."), start_ns: ns("Start on the run's clock."), window_ns: ns("The window's length."), gap_before_ns: ns("Time before it that belongs to none."),
      compute_ns: ns("Compute kernels."), exposed_communication_ns: ns("Communication alone."), exposed_memcpy_ns: ns("Copies alone."), exposed_memset_ns: ns("Sets alone."), runtime_ns: ns("Host in a device runtime call."), data_loading_ns: ns("Host loads data."), host_op_ns: ns("Host in an operator."), other_ns: ns("None of these."),
    }, windows),
    collectives: analysis("Collectives", "Every collective on every rank, in device order within its group and stream.", {
      rank: col("", "Rank."), group: col("", "Process group."), group_size: col("count", "Ranks in the group."), sequence: col("", "Number in the group."), collective: col("", "Kind."), dtype: col("", "Data type."), in_elements: col("count", "Elements in."), out_elements: col("count", "Elements out."), bytes: col("bytes", "Full size."), stream: col("", "Stream."),
      launch_ns: ns("Launch on the host."), start_ns: ns("Start on the device."), end_ns: ns("End on the device."), duration_ns: ns("End less start."),
    }, calls.slice(0, most), calls.length > most ? { shown: most, total: calls.length } : null),
    collective_summary: analysis("Collectives by kind and size", "Collectives of one kind, type and size taken together, over all ranks.", {
      group: col("", "Process group."), group_size: col("count", "Ranks in it."), collective: col("", "Kind."), dtype: col("", "Data type."), bytes: col("bytes", "Full size."), count: col("count", "How many."), total_ns: ns("Sum of durations."), mean_ns: ns("Mean duration."), min_ns: ns("Shortest."), median_ns: ns("Median."), max_ns: ns("Longest."),
    }, summary),
    kernels: analysis("Kernels", "Kernels by name.", {
      rank: col("", "Rank."), name: col("", "Kernel name."), category: col("", "compute, communication or memory."), calls: col("count", "Launches."), total_ns: ns("Sum."), mean_ns: ns("Mean."), min_ns: ns("Least."), median_ns: ns("Median."), max_ns: ns("Most."), std_ns: ns("Standard deviation."),
    }, kernels),
  };
  const findings = alone ? [] : [
    { id: "straggler", severity: "error", title: `Rank ${late} holds the others up in every step`, ranks: [late], steps: numbers, evidence: [{ name: "lateness_ns", value: 7_912_044, unit: "ns" }, { name: "waited_ns", value: 7_644_120, unit: "ns" }, { name: "cause", value: "data_loading", unit: "" }], saving_ns: 7_644_120, advice: "Its loader takes 8.4 ms a step where the others take 0.25 ms: more `num_workers`, or look at that host's disk." },
    { id: "exposed_communication", severity: "warning", title: "27 % of the step is communication that nothing hides", ranks: world, steps: numbers, evidence: [{ name: "exposed_share", value: 0.2712, unit: "ratio" }, { name: "largest_bytes", value: 17_632_384, unit: "bytes" }], saving_ns: 4_120_000, advice: "Smaller buckets start earlier: try `bucket_cap_mb=10`." },
    { id: "no_metadata", severity: "info", title: "Two collectives name no process group", ranks: [0], steps: [], evidence: [{ name: "collectives", value: 2, unit: "count" }], saving_ns: null, advice: "" },
  ];
  return {
    schema_version: 1, generated_by: "rankscope 0.1.0", generated_at: "2026-01-02T03:04:05+00:00",
    run: { id: id ?? `resnet18-${ranks}r`, path: "runs/resnet18", command: ["torchrun", "--nproc-per-node", String(Math.min(8, ranks)), "train.py", "--batch-size", "64"], world_size: ranks, ranks: world, missing_ranks: [],
      hosts: Array.from({ length: Math.ceil(ranks / 8) }, (_, i) => `${host}${String(i).padStart(2, "0")}`), devices: world.map(() => "NVIDIA H100 80GB HBM3"), steps: numbers },
    analyses, findings,
  };
}

export function hostileRun() {
  const nasty = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>&amp;{{7*7}}";
  const long = `very_long_kernel_${"x".repeat(10_000)}_end`;
  const run = makeRun({ ranks: 3, late: 2, name: (text) => (text.startsWith("ncclDevKernel_AllR") ? nasty : text.startsWith("sm90") ? long : text.startsWith("triton_poi") ? "=HYPERLINK(\"x\")" : text.startsWith("Memset") ? "\u202egnp.exe\u202c שלום עולם \u001b[31mred" : text === "default_pg" ? nasty : text), host: nasty, id: nasty });
  run.run.path = `/${nasty}/${long}`;
  run.run.command = ["python", nasty, long];
  run.run.devices = [nasty, long];
  run.run.missing_ranks = [3, 5, 6, 7];
  run.run.world_size = 8;
  run.generated_by = nasty;
  run.findings[0].title = nasty;
  run.findings[0].advice = long;
  run.findings[1].title = "שלום \u202e" + long;
  run.findings[1].evidence = [{ name: nasty, value: nasty, unit: nasty }, { name: long, value: long, unit: "" }];
  run.analyses[nasty] = analysis(nasty, `${nasty}\n\n${long}\n\n    ${nasty}`, { [nasty]: col(nasty, nasty), "__proto__x": col("", ""), empty: col("ns", "Nothing is known.") }, [[nasty, long, null], ["+1+1", "-2", null], ["@SUM(A1)", "\tTab", null]]);
  run.analyses.broken = { title: "Broken", doc: "", columns: { a: col("", ""), b: col("", "") }, data: { a: [1], b: [1, 2] }, truncated: null };
  return run;
}

export function bareRun() {
  const run = makeRun({ ranks: 2 });
  return { ...run, run: { ...run.run, id: null, command: null, world_size: null, hosts: [], devices: [], steps: [] }, analyses: {}, findings: [] };
}

/** A job on CPU whose traces mark no step and hold no device event. */
export function cpuRun() {
  const run = makeRun({ ranks: 2, steps: 1, late: 1 });
  run.run.steps = [];
  run.run.devices = ["CPU"];
  run.analyses.step_time.data.step = [null, null];
  Object.assign(run.analyses.overview.data, { steps: [0], exposed_share: [null], slowest_margin_ns: [null] });
  for (const name of ["kernels", "device_time"]) for (const column of Object.keys(run.analyses[name].data)) run.analyses[name].data[column] = [];
  return run;
}

/** As Python folds a payload in: nothing in it can end the script element. */
export function fold(html, payload) {
  const text = typeof payload === "string" ? payload : JSON.stringify(payload);
  const safe = text.replace(/[<>&\u2028\u2029]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return html.replace(DATA_MARK, () => safe);
}

const FIXTURES = {
  ranks1: () => makeRun({ ranks: 1 }),
  ranks8: () => makeRun({ ranks: 8, late: 5 }),
  ranks64: () => makeRun({ ranks: 64, late: 37, steps: 3 }),
  ranks256: () => makeRun({ ranks: 256, late: 200, steps: 3 }),
  steps400: () => makeRun({ ranks: 2, late: 1, steps: 400, each: 5 }),
  rows100k: () => makeRun({ ranks: 128, late: 3, steps: 20, each: 40, most: 100_000 }),
  hostile: hostileRun,
  bare: bareRun,
  cpu: cpuRun,
  future: () => ({ schema_version: 99 }),
  cut: () => '{"schema_version": 1, "run": {',
};

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const folder = process.argv[2];
  if (!folder) {
    console.error("usage: node scripts/fixtures.mjs FOLDER");
    process.exit(2);
  }
  mkdirSync(folder, { recursive: true });
  const html = readFileSync(template, "utf8");
  for (const [name, make] of Object.entries(FIXTURES)) {
    const payload = make();
    const page = fold(html, payload);
    writeFileSync(join(folder, `${name}.html`), page);
    writeFileSync(join(folder, `${name}.json`), typeof payload === "string" ? payload : JSON.stringify(payload));
    console.log(`${name}.html ${(page.length / 1e6).toFixed(2)} MB`);
  }
  writeFileSync(join(folder, "template.html"), html);
}

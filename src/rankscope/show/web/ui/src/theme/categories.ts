/**
 * What the time went to: one color, one pattern and one word for each, the same in every chart, bar and table.
 *
 * The hues are Okabe and Ito's, apart under the common color blindnesses; the patterns tell them apart without any hue.
 * The colors themselves are in theme.css (`--cat-…`), once for light and once for dark.
 */
export type Category =
  | "compute" | "communication" | "memory" | "memset" | "runtime" | "data_loading" | "host_op" | "python" | "annotation" | "other" | "idle"
  | "overlap" | "transfer" | "waiting" | "forward" | "backward" | "optimizer";

export type Pattern = "none" | "rising" | "falling" | "dots" | "grid" | "level" | "upright";

interface Look {
  readonly label: string;
  readonly pattern: Pattern;
}

export const CATEGORIES: Readonly<Record<Category, Look>> = {
  compute: { label: "Compute", pattern: "none" },
  communication: { label: "Communication", pattern: "rising" },
  memory: { label: "Memory copies", pattern: "dots" },
  memset: { label: "Memory sets", pattern: "grid" },
  runtime: { label: "Device runtime calls", pattern: "level" },
  data_loading: { label: "Data loading", pattern: "falling" },
  host_op: { label: "Host operators", pattern: "upright" },
  python: { label: "Python frames", pattern: "none" },
  annotation: { label: "Annotations", pattern: "none" },
  other: { label: "Other", pattern: "none" },
  idle: { label: "Idle", pattern: "none" },
  overlap: { label: "Overlap", pattern: "grid" },
  transfer: { label: "Transfer", pattern: "level" },
  waiting: { label: "Waiting", pattern: "falling" },
  forward: { label: "Forward", pattern: "none" },
  backward: { label: "Backward", pattern: "rising" },
  optimizer: { label: "Optimizer", pattern: "dots" },
};

/** The category of a kernel or row as analyses name it; what is not known is `other`. */
export function categoryOf(name: unknown): Category {
  switch (name) {
    case "compute": case "communication": case "memory": case "runtime": case "data_loading": case "host_op": case "idle": case "python": case "annotation": return name;
    case "memset": case "gpu_memset": return "memset";
    case "memcpy": case "gpu_memcpy": return "memory";
    default: return "other";
  }
}

export function categoryVariable(category: Category): string {
  return `--cat-${category.replace("_", "-")}`;
}

"""What capture costs on an accelerator: recorded and waiting steps, the end of a window, and the size of its trace.

Each variant trains the same small transformer in a process of its own, in turn. Without an accelerator it runs on the
CPU and says so: those figures show that the benchmark works and are none of a device.

- `step`: median wall time of a recorded step over that of a step without a profiler in the same process.
- `waiting`: the same for steps before the window (with rankscope, or under torch's schedule).
- `stall`: wall seconds of the call of `step()` that ends the window; `later`: what the steps up to the end of the
  writing lost beyond twice their median; `events`, `MB`: of the trace, per recorded step.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile

from benchmarks.timing import child_result

VARIANTS = {
    "torch, gzip handler": {"record_shapes": True, "with_stack": True},
    "minimal": {"record_shapes": False, "with_stack": False},
    "shapes": {"record_shapes": True, "with_stack": False},
    "shapes, stacks": {"record_shapes": True, "with_stack": True},
    "shapes, stacks, memory": {"record_shapes": True, "with_stack": True, "profile_memory": True},
    "minimal, watched": {"record_shapes": False, "with_stack": False, "watch": True},
}
_CHILD = r"""
import glob, gzip, json, sys, time, torch
folder, variant, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
kind = next((k for k in ("cuda", "xpu") if getattr(torch, k).is_available()), "cpu")
name = getattr(torch, kind).get_device_name() if kind != "cpu" else "cpu"
WIDTH, BATCH = (1024, 32) if kind != "cpu" else (32, 1)
if kind == "cpu":
    torch.set_num_threads(1)
WAIT, ACTIVE, AFTER = 60, 5, 60
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, device=kind)
model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(kind)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch = torch.randn(BATCH, 128, WIDTH, device=kind)
def train():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if kind != "cpu":
        getattr(torch, kind).synchronize()
for _ in range(20):
    train()
def timed(steps, after=lambda: None):
    found = []
    for _ in range(steps):
        began = time.perf_counter()
        train()
        after()
        found.append(time.perf_counter() - began)
    return found
plain = timed(WAIT)
if variant.startswith("torch"):
    handler = torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)
    schedule = torch.profiler.schedule(wait=WAIT - 2, warmup=2, active=ACTIVE, repeat=1)
    profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=handler, **options)
else:
    import rankscope
    profiler = rankscope.Profiler(folder, wait=WAIT - 2, warmup=2, active=ACTIVE, repeat=1, **options)
profiler.start()
waiting = timed(WAIT, profiler.step)[5:-4]
recorded = timed(ACTIVE - 1, profiler.step)
train()
began = time.perf_counter()
profiler.step()
stall = time.perf_counter() - began
later = timed(AFTER, profiler.step)
profiler.stop()
usual = sorted(plain)[len(plain) // 2]
[trace] = glob.glob(folder + "/**/*.json.gz", recursive=True)
text = gzip.decompress(open(trace, "rb").read())
median = lambda values: sorted(values)[len(values) // 2]
print("RESULT " + json.dumps(dict(
    device=name, step_ms=usual * 1e3, step=median(recorded) / usual, waiting=median(waiting) / usual, stall=stall,
    later=sum(max(each - 2 * usual, 0.0) for each in later), events=text.count(b'"ph": "X"') / ACTIVE,
    MB=len(text) / 1e6 / ACTIVE,
)))
"""
FIGURES = ("step", "waiting", "stall", "later", "events", "MB")


def main(rounds: int = 3) -> None:
    """Print a table of all variants, the medians of some rounds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    device = ""
    for _ in range(rounds):
        for name, options in VARIANTS.items():
            with tempfile.TemporaryDirectory() as folder:
                result = _run(folder, name, json.dumps(options))
            device = str(result.pop("device"))
            found[name].append(result)
    if device == "cpu":
        print("no accelerator: on the CPU, which says nothing of a device")
    plain = statistics.median(one["step_ms"] for many in found.values() for one in many)
    print(f"{device}, {plain:.2f} ms a step without a profiler; medians of {rounds}")
    print(f"{'variant':28}" + "".join(f"{name:>10}" for name in FIGURES))
    for name, many in found.items():
        print(f"{name:28}" + "".join(f"{statistics.median(one[figure] for one in many):10.3f}" for figure in FIGURES))


def _run(*arguments: str) -> dict[str, float]:
    found: dict[str, float] = child_result(_CHILD, *arguments, timeout_s=600, KINETO_LOG_LEVEL="6")
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

"""What a window costs the training loop, against tensorboard_trace_handler(use_gzip=True), the same without
compression, and d9d's way; and what waiting costs. Every way in a process of its own, in turn, so that a change of the
machine's speed falls on all.

Each process makes several windows. The first is the first end of a recording in this process, the later ones are the
steady state. All that a window costs, from the call of `step()` that ends it until the next one records, is its own:
also the freeing of its recording, which torch's handlers put off until the next window's warm-up.

- `stall`: wall seconds of the call of `step()` that ends the window; `stall_cpu`: of those, the training thread's own
  CPU seconds; `torch_cpu`: for ours, those in torch's own stop and save.
- `later`: wall seconds that the steps lost until the next window records, beyond twice their median each; `worst`: the
  longest of them.
- `next_cpu`: CPU seconds of the whole process, all threads, in that call and the steps that follow until the next
  window's warm-up, less what the steps take by themselves: what the training loses where there is no spare core.
- `whole_cpu`: the same until the next window records.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

from benchmarks.timing import child_result
from rankscope.primitives.statistics import student_quantile
from rankscope.rundir.config import PRESETS

WINDOWS = 3
# About 50 MB of JSON: layers of a small transformer forward and backward. A loop of one operator would be compressed
# twice as fast.
_CHILD = r"""
import json, os, sys, tarfile, threading, time, torch
way, folder, operators, waiting, windows, stacks = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
kinds = torch.profiler.ProfilerActivity
layers = [torch.nn.TransformerEncoderLayer(d, 2, 2 * d, batch_first=True) for d in range(4, 20, 2)]
inputs = [torch.ones(2, d // 2, d) for d in range(4, 20, 2)]
def work(n):
    for i in range(n):
        layers[i % 8](inputs[i % 8]).sum().backward()
def d9d(profile):
    path = folder + "/trace.json"
    profile.export_chrome_trace(path)
    with tarfile.open(folder + "/trace.tar.gz", "w:gz") as archive:
        archive.add(path, "trace.json")
    os.remove(path)
switches = dict(record_shapes=True, with_stack=bool(stacks))
torchs = [0.0]  # CPU seconds of this thread in torch's own stop and save
if way == "ours":
    import rankscope
    from rankscope.capture.recording import Recording
    def timed(whole):
        def call(*args):
            began = time.thread_time()
            whole(*args)
            torchs[0] += (time.thread_time() - began) * (threading.current_thread() is threading.main_thread())
        return call
    Recording.stop, Recording.save = timed(Recording.stop), timed(Recording.save)
    profile = rankscope.Profiler(folder, wait=waiting, warmup=1, active=2, repeat=windows + 1, **switches)
    profile.start()
else:
    handler = torch.profiler.tensorboard_trace_handler(folder, use_gzip=way == "gzip handler")
    handler = d9d if way == "d9d" else handler
    schedule = torch.profiler.schedule(wait=waiting, warmup=1, active=2, repeat=windows + 1)
    profile = torch.profiler.profile(activities=[kinds.CPU], schedule=schedule, on_trace_ready=handler, **switches)
    profile.start()
period, rows = waiting + 3, []
def clocks():
    return time.perf_counter(), time.thread_time(), time.process_time(), torchs[0]
for number in range(period * windows + waiting + 1):
    if way == "ours" and number % period == waiting - 2:
        profile.wait_for_exports()  # on a busy machine the writer may still be at it, and the window would be skipped
    began = time.perf_counter()
    work(operators if number % period > waiting else 2)
    before = clocks()
    profile.step()
    rows.append((began, before, clocks()))
# What a step takes by itself: before any window.
calm = range(waiting // 2, waiting - 2)
usual = sorted(rows[n][2][0] - rows[n][0] for n in calm)[len(calm) // 2]
cpu = (rows[calm[-1]][2][2] - rows[calm[0]][2][2]) / (len(calm) - 1)
found = []
for window in range(windows):
    end = (window + 1) * period - 1  # its step() ends the window
    warmup, recording = end + waiting, end + waiting + 1  # whose step() begins the next one's
    _, before, after = rows[end]
    later = [rows[n][2][0] - rows[n][0] for n in range(end + 1, recording + 1)]
    found.append(dict(
        stall=after[0] - before[0], stall_cpu=after[1] - before[1], torch_cpu=after[3] - before[3],
        later=sum(max(step - 2 * usual, 0.0) for step in later), worst=max(later),
        next_cpu=rows[warmup - 1][2][2] - before[2] - cpu * (warmup - 1 - end),
        whole_cpu=rows[recording][2][2] - before[2] - cpu * (recording - end),
    ))
profile.stop()
print("RESULT " + json.dumps(found))
"""

_WAITING = r"""
import json, os, sys, time, torch, rankscope
torch.set_num_threads(1)
x = torch.ones(4)
def step(profiler):
    y = x
    for _ in range(400):
        y = y + 1
    if profiler is not None:
        profiler.step()
waiting = rankscope.Profiler(sys.argv[1], wait=10**9)
waiting.start()
os.environ |= {"RANK": "1", "WORLD_SIZE": "2"}
unselected = rankscope.Profiler(sys.argv[1], ranks="0")
unselected.start()
pairs = {"waiting": [], "unselected": []}
for _ in range(30):
    for name, profiler in (("waiting", waiting), ("unselected", unselected)):
        times = []
        for given in (None, profiler):
            began = time.process_time()
            for _ in range(40):
                step(given)
            times.append((time.process_time() - began) / 40)
        pairs[name].append(times[1] - times[0])
waiting.stop()
print("RESULT " + json.dumps(pairs))
"""

_WATCH = r"""
import json, os, sys, time, torch, torch.distributed as dist, rankscope
from rankscope.capture.watch import phases
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.ones(10**6, 64), batch_size=8)
batches, losses = iter(loader), torch.zeros(8)
for _ in range(2100):  # the flight recorder is full, as in any job after a while
    dist.all_reduce(losses)
def step(profiler):
    model(next(batches)).sum().backward()
    for _ in range(int(sys.argv[3]) - 1):  # and one of DDP's
        dist.all_reduce(losses)
    optimizer.step()
    optimizer.zero_grad()
    if profiler is not None:
        profiler.step()
profiler = rankscope.Profiler(sys.argv[1], wait=10**9, watch=True)
profiler.start()
watcher, loop, control = profiler._watcher, [], []
for _ in range(30):
    times = []
    for given in (None, profiler):
        (phases.unwatch_phases if given is None else phases.watch_phases)(watcher._phases)
        step(given)
        began = time.thread_time()
        for _ in range(40):
            step(given)
        times.append((time.thread_time() - began) / 40)
    loop.append(times[1] - times[0])
samples = []
clock, sampler = (time.pthread_getcpuclockid(each._thread.ident) for each in (watcher, watcher._sampler))
for _ in range(int(sys.argv[2])):  # steps of 100 ms; the buffer is read every 15 s or so
    cpu, sampled = time.clock_gettime(clock), time.clock_gettime(sampler)
    for _ in range(300):
        began = time.perf_counter()
        step(profiler)
        time.sleep(max(0.1 - (time.perf_counter() - began), 0.0))
    control.append((time.clock_gettime(clock) - cpu) / 300)
    samples.append((time.clock_gettime(sampler) - sampled) / 300)
profiler.stop()
print("RESULT " + json.dumps({"watch, in the loop": loop, "watch, control thread": control, "watch, samples": samples}))
"""


_PRESET = """
import json, sys, time, torch, rankscope
from rankscope.rundir.manifest import read_rank_manifest
preset, folder = sys.argv[1:]
torch.set_num_threads(1)
layers = [torch.nn.TransformerEncoderLayer(d, 2, 2 * d, batch_first=True) for d in range(4, 20, 2)]
inputs = [torch.ones(2, d // 2, d) for d in range(4, 20, 2)]
profiler = rankscope.Profiler(folder, preset=preset if preset != "none" else None, wait=20, repeat=2)
config, works, calls = profiler.config, [], []
with profiler:
    for step in range(2 * (20 + config.warmup + config.active) + 5):
        if step == 20 + config.warmup + config.active + 5:
            profiler._writer.drain(120)  # on a busy machine the second window would be skipped
        began = time.thread_time()
        for i in range(95):
            layers[i % 8](inputs[i % 8]).sum().backward()
        worked = time.thread_time()
        profiler.step()
        works.append(worked - began)
        calls.append(time.thread_time() - worked)
# The second window: the first of a process loads what torch's profiler needs. The fastest steps: others shared the
# core. In the warm-up, operators are not recorded.
warmup = 20 + config.warmup + config.active + 20
end = warmup + config.warmup + config.active
plain, recorded = min(works[1:20]), min(works[warmup + config.warmup : end])
written = read_rank_manifest(__import__("pathlib").Path(profiler.run_dir, "ranks", "rank0.json")).written[1]
print("RESULT " + json.dumps({
    "plain": plain, "recorded": recorded / plain, "calls": sum(calls[warmup - 1 : end]) / plain,
    "mb": written.bytes / 1e6, "json_mb": written.json_bytes / 1e6,
}))
"""


def _run(code: str, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = child_result(code, *arguments, timeout_s=1200, KINETO_LOG_LEVEL="6", OMP_NUM_THREADS="1")
    return found


NAMES = ("stall", "stall_cpu", "torch_cpu", "later", "worst", "next_cpu", "whole_cpu")


def stalls(rounds: int = 5, operators: int = 95, between: int = 250, *, stacks: bool = True) -> None:
    """The cost of a window by method: the first of a process, and later ones.

    Args:
        rounds: how often each way is run.
        operators: layers of a recorded step.
        between: steps between two windows.
        stacks: whether Python stacks are recorded beside the shapes.
    """
    found: dict[str, list[list[dict[str, float]]]] = {"gzip handler": [], "plain handler": [], "d9d": [], "ours": []}
    for _ in range(rounds):
        for way, runs in found.items():
            with tempfile.TemporaryDirectory() as folder:
                options = (operators, between, WINDOWS, int(stacks))
                runs.append(_run(_CHILD, way, folder, *map(str, options)))  # type: ignore[arg-type]
    for which, windows in (("first window", slice(1)), ("later windows", slice(1, None))):
        title = f"{which}, shapes{' and stacks' if stacks else ''}"
        _table(title, {way: [w for run in runs for w in run[windows]] for way, runs in found.items()})


def _table(title: str, found: dict[str, list[dict[str, float]]]) -> None:
    print(f"{title + ' (s, medians)':40}" + "".join(f"{name:>10}" for name in NAMES))
    medians = {way: {n: statistics.median(one[n] for one in many) for n in NAMES} for way, many in found.items()}
    for way, values in medians.items():
        print(f"{way:40}" + "".join(f"{values[name]:10.3f}" for name in NAMES))
    ours = medians["ours"]
    for way in ("gzip handler", "plain handler", "d9d"):
        other = medians[way]
        stall, cpu = ours["stall"] / other["stall"], ours["stall_cpu"] / other["stall_cpu"]
        both = (ours["stall"] + ours["later"]) / (other["stall"] + other["later"])
        spare, whole = ours["next_cpu"] / other["next_cpu"], ours["whole_cpu"] / other["whole_cpu"]
        print(
            f"ours / {way}: stall {stall:.3f}, CPU {cpu:.3f}, stall and later steps {both:.3f}, "
            f"with no spare core {spare:.3f}, whole {whole:.3f}; worst later step / stall "
            f"{ours['worst'] / other['stall']:.3f}"
        )
    print(f"of our stall, CPU that is not torch's own: {ours['stall_cpu'] - ours['torch_cpu']:.3f} s\n")


def watch(blocks: int = 8, collectives: int = 10) -> None:
    """What the watch costs a step of 100 ms with some collectives: CPU time of the loop's thread (30 pairs), of the
    control thread and of the samples (blocks of 300 steps): means and 95 % bounds. The flight recorder is full."""
    with tempfile.TemporaryDirectory() as folder:
        _print_bounds(_run(_WATCH, folder, str(blocks), str(collectives)))


def waiting() -> None:
    """The cost of a step that is not recorded: mean of 30 pairs and the 95 % upper bound, of a 100 ms step."""
    with tempfile.TemporaryDirectory() as folder:
        _print_bounds(_run(_WAITING, folder))


def _print_bounds(pairs: dict[str, object]) -> None:
    for name, differences in pairs.items():
        assert isinstance(differences, list)
        mean, error = statistics.fmean(differences), statistics.stdev(differences) / len(differences) ** 0.5
        bound = mean + student_quantile(len(differences) - 1, 0.9) * error  # one-sided
        print(
            f"{name}: {mean * 1e6:+.2f} µs a step, 95 % upper bound {bound * 1e6:.2f} µs = {bound / 0.1:.4%} of 100 ms"
        )


def presets(rounds: int = 5) -> None:
    """The cost of a window by preset, in CPU time of the training's thread: a recorded step, and the calls of
    ``step()`` that start, stop and save a window, both in unrecorded steps; and the trace's size."""
    print(f"{'preset (medians)':20}{'recorded step':>15}{'start and stop':>16}{'MB':>8}{'JSON MB':>9}")
    for preset in ("none", *PRESETS):
        runs = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(_run(_PRESET, preset, folder))
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}  # type: ignore[type-var]
        print(
            f"{preset:20}{middle['recorded']:14.2f}x{middle['calls']:15.1f}x{middle['mb']:8.2f}{middle['json_mb']:9.1f}"
            f"  (a step is {middle['plain'] * 1e3:.0f} ms)"
        )


def main(rounds: int = 5) -> None:
    stalls(rounds)
    stalls(rounds, 100, stacks=False)
    waiting()
    watch()
    watch(collectives=20)
    presets(rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["watch"]:
        watch(collectives=int(sys.argv[2]) if len(sys.argv) > 2 else 10)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

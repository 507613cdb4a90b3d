"""What a window costs the training loop, against tensorboard_trace_handler(use_gzip=True), the same without
compression, and d9d's way; and what waiting costs. Every way in a process of its own, in turn, so that a change of the
machine's speed falls on all.

The stall is the time for which the training thread did not get on: in `step()`, and in any later step beyond its usual
time, wherever that came from (the interpreter held by another thread counts as well). It is given in wall seconds and,
for what the thread itself did, in its CPU seconds; of those, what torch's own stop and save took is given for ours.
What is `beside` is what the process needs besides, in the stall and the steps that follow: with no spare core the
training gives that up as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

# About 60 MB of JSON, with shapes and stacks: layers of a small transformer forward and backward. A loop of one
# operator would be compressed twice as fast.
_CHILD = r"""
import json, os, sys, tarfile, threading, time, torch
way, folder, operators, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
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
switches = dict(record_shapes=True, with_stack=True)
torchs = [0.0]  # CPU seconds of this thread in torch's own stop and save
if way == "ours":
    import rankscope
    from rankscope.capture.recorder import Recording
    def timed(whole):
        def call(*args):
            began = time.thread_time()
            whole(*args)
            torchs[0] += (time.thread_time() - began) * (threading.current_thread() is threading.main_thread())
        return call
    Recording.stop, Recording.save = timed(Recording.stop), timed(Recording.save)
    profile = rankscope.Profiler(folder, wait=2, warmup=1, active=2, **switches)
    profile.start()
else:
    handler = torch.profiler.tensorboard_trace_handler(folder, use_gzip=way == "gzip handler")
    handler = d9d if way == "d9d" else handler
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)
    profile = torch.profiler.profile(activities=[kinds.CPU], schedule=schedule, on_trace_ready=handler, **switches)
    profile.start()
for _ in range(4):
    work(operators)
    profile.step()
work(operators)
everything = time.process_time()
began, cpu = time.perf_counter(), time.thread_time()
profile.step()
stall, stall_cpu = time.perf_counter() - began, time.thread_time() - cpu
steps, usually = [], []
for _ in range(after):
    began, cpu = time.perf_counter(), time.thread_time()
    work(2)
    profile.step()
    steps.append(time.perf_counter() - began)
    usually.append(time.thread_time() - cpu)
usual = sorted(steps)[len(steps) // 2]
later = sum(max(step - 2 * usual, 0.0) for step in steps)
profile.stop()  # on a busy machine the writer may still be at it
beside = time.process_time() - everything - sorted(usually)[len(usually) // 2] * after - stall_cpu
found = dict(stall=stall, stall_cpu=stall_cpu, torch_cpu=torchs[0], later=later, worst=max(steps), beside=beside)
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


def _run(code: str, *arguments: str) -> dict[str, object]:
    environment = dict(os.environ, KINETO_LOG_LEVEL="6", OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise RuntimeError(f"the measured process failed:\n{done.stderr[-2000:]}")


def stalls(rounds: int = 5, operators: int = 95, after: int = 250) -> None:
    """The stall of one window, by way."""
    found: dict[str, list[dict[str, float]]] = {"gzip handler": [], "plain handler": [], "d9d": [], "ours": []}
    for _ in range(rounds):
        for way, runs in found.items():
            with tempfile.TemporaryDirectory() as folder:
                runs.append(_run(_CHILD, way, folder, str(operators), str(after)))  # type: ignore[arg-type]
    names = ("stall", "stall_cpu", "torch_cpu", "later", "worst", "beside")
    print(f"{'seconds, medians of ' + str(rounds):24}" + "".join(f"{name:>11}" for name in names))
    medians = {way: {n: statistics.median(run[n] for run in runs) for n in names} for way, runs in found.items()}
    for way, values in medians.items():
        print(f"{way:24}" + "".join(f"{values[name]:11.3f}" for name in names))
    ours = medians["ours"]
    for way in ("gzip handler", "plain handler", "d9d"):
        other = medians[way]
        stall, cpu = ours["stall"] / other["stall"], ours["stall_cpu"] / other["stall_cpu"]
        both = (ours["stall"] + ours["later"]) / (other["stall"] + other["later"])
        whole = (ours["stall_cpu"] + ours["beside"]) / (other["stall_cpu"] + other["beside"])
        print(
            f"ours / {way}: stall {stall:.2f}, CPU {cpu:.2f}, stall and later steps {both:.2f}, "
            f"with no spare core {whole:.2f}"
        )
    print(f"of ours, CPU that is not torch's own: {ours['stall_cpu'] - ours['torch_cpu']:.3f} s")


def waiting() -> None:
    """What a step costs that is not recorded: mean of 30 pairs and the 95 % upper bound, of a 100 ms step."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = _run(_WAITING, folder)
    for name, differences in pairs.items():
        assert isinstance(differences, list)
        mean, error = statistics.fmean(differences), statistics.stdev(differences) / len(differences) ** 0.5
        bound = mean + 1.70 * error  # Student's t of 29 degrees of freedom, one-sided
        print(
            f"{name}: {mean * 1e6:+.2f} µs a step, 95 % upper bound {bound * 1e6:.2f} µs = {bound / 0.1:.4%} of 100 ms"
        )


def main(rounds: int = 5) -> None:
    stalls(rounds)
    waiting()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

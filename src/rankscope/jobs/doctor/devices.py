"""Devices, communication backends and torch's profiler, as torch sees them in a separate process.

In: the lines of `capture/probe.py`. Out: checks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.jobs.doctor.check import Check
from rankscope.rundir import fields
from rankscope.rundir.capture_files import HOOK_VARIABLE, PROBE_SCRIPT
from rankscope.rundir.versions import OLDEST_TORCH, is_supported_torch

_RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_GIB = 2**30


@dataclass(frozen=True)
class Answer:
    """What torch reported.

    Attributes:
        report: all JSON objects that it printed, merged.
        stage: the last stage that it reported; ``done`` at the end.
        error: why it stopped early; None if it did not.
        timed_out: whether it exceeded the time limit.
    """

    report: Mapping[str, object] = field(default_factory=dict)
    stage: str = "start"
    error: str | None = None
    timed_out: bool = False


def ask_torch(environ: Mapping[str, str], timeout_s: float) -> Answer:
    """Ask torch, in a process that is ended if it does not answer."""
    line = [sys.executable, "-c", _RUN, str(PROBE_SCRIPT)]
    env = {name: value for name, value in environ.items() if name != HOOK_VARIABLE}  # it is no process of a job
    try:
        done = subprocess.run(
            line, env=env, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as late:
        report, stage = _joined(late.stdout or b"")
        return Answer(report, stage, f"no answer within {timeout_s:.0f} s", timed_out=True)
    except OSError as error:
        return Answer(error=f"{sys.executable} cannot be started: {error.strerror}")
    report, stage = _joined(done.stdout)
    if stage == "done":
        return Answer(report, stage)
    lines = [text for text in done.stderr.decode("utf-8", "replace").splitlines() if text.strip()]
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
    return Answer(report, stage, lines[-1].strip() if lines else ended)


def _joined(out: bytes) -> tuple[dict[str, object], str]:
    report: dict[str, object] = {}
    stage = "start"
    for line in out.splitlines():
        try:
            found = fields.mapping(json.loads(line))
        except ValueError:
            continue  # what a library prints when it is loaded
        stage = fields.text(found.pop("stage", None)) or stage
        report |= found
    return report, stage


def checks(answer: Answer, environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[Check]:
    """What torch's answer means for profiling here.

    Args:
        answer: of :func:`ask_torch`.
        environ: the environment that it was asked in.
        root: where ``/dev`` is looked for.
    """
    report = answer.report
    version = fields.text(report.get("torch"))
    if version is None:
        yield _no_torch(answer)
        return
    took = fields.number(report.get("import_s")) or 0.0
    what = f"torch {version}, imported in {took:.1f} s from {fields.text(report.get('file'))}"
    if not is_supported_torch(version):
        yield Check("torch", "torch", "warn", what, "capture supports torch {}.{} and newer".format(*OLDEST_TORCH))
    elif took > 30:
        fix = "an environment on a slow file system: put it into a container image, or on a local disk"
        yield Check("torch", "torch", "warn", what, fix)
    else:
        yield Check("torch", "torch", "ok", what)
    if answer.error is not None:
        what = f"torch failed at {answer.stage}: {answer.error}"
        yield Check("torch", "answer", "fail", what, _fix_of(answer.stage))
    kinds = list(_devices(report, environ, root))
    yield from kinds
    count = {kind: fields.count(fields.mapping(report.get(kind)).get("count")) or 0 for kind in ("cuda", "xpu")}
    yield from _backends(report, count)
    yield from _profiler(report, count)


def _no_torch(answer: Answer) -> Check:
    if answer.timed_out:
        fix = "try `python -X importtime -c 'import torch'`; a slow or hanging file system, or a device's driver"
        return Check("torch", "torch", "fail", f"importing torch: {answer.error}", fix)
    if answer.error and "No module named 'torch'" in answer.error:
        fix = "pip install torch, or activate the environment that the job runs in; reading traces needs none"
        return Check("torch", "torch", "warn", "torch is not installed: nothing can be captured here", fix)
    fix = "does `python -c 'import torch'` work? Modules and library paths of another build are the usual cause"
    return Check("torch", "torch", "fail", f"torch cannot be imported: {answer.error}", fix)


def _fix_of(stage: str) -> str:
    return {
        "cuda": "does nvidia-smi (rocm-smi) answer? A hanging device needs a reset by the administrators",
        "xpu": "does xpu-smi discovery answer?",
    }.get(stage, "does `python -c 'import torch.distributed'` work?")


def _devices(report: Mapping[str, object], environ: Mapping[str, str], root: Path) -> Iterator[Check]:
    build = "rocm" if report.get("hip_build") else "cuda" if report.get("cuda_build") else "cpu"
    found = False
    for kind, shown in (("cuda", "ROCm" if build == "rocm" else "CUDA"), ("xpu", "XPU")):
        about = fields.mapping(report.get(kind))
        devices = [fields.mapping(item) for item in fields.items(about.get("devices"), lambda item: item)]
        if devices:
            found = True
            yield from _of_kind(kind, shown, devices)
    nvidia = sorted((root / "dev").glob("nvidia[0-9]*"))
    amd = root / "dev" / "kfd"
    hidden = next((n for n in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if environ.get(n) in ("", "-1")), None)
    if found:
        return
    if hidden and (nvidia or amd.exists()):
        yield Check("devices", "hidden", "warn", f"{hidden}={environ[hidden]!r} hides the devices", f"unset {hidden}")
    elif nvidia or amd.exists():
        yield _unseen(fields.mapping(report.get("cuda")), build, "NVIDIA" if nvidia else "AMD", nvidia or [amd])
    elif build != "cpu":
        what = "no device here, although torch is built for one: is this a login node?"
        yield Check("devices", "devices", "warn", what, "run it within a job")
    else:
        yield Check("devices", "devices", "ok", "no accelerator: ranks compute on the CPU")


def _of_kind(kind: str, shown: str, devices: list[dict[str, object]]) -> Iterator[Check]:
    names: dict[str, int] = {}
    for device in devices:
        name = fields.text(device.get("name")) or "?"
        names[name] = names.get(name, 0) + 1
    total = fields.count(devices[0].get("total_bytes")) or 0
    what = ", ".join(f"{n} x {name}" for name, n in names.items()) + f" ({shown}), {total / _GIB:.0f} GiB each"
    yield Check("devices", kind, "ok", what)
    taken = []
    for index, device in enumerate(devices):
        free, total = fields.count(device.get("free_bytes")), fields.count(device.get("total_bytes")) or 0
        if device.get("error"):
            fix = "another process may hold it exclusively: see nvidia-smi"
            yield Check("devices", f"{kind}-use", "fail", f"device {index}: {device['error']}", fix)
        elif free is not None and free < total // 2:
            taken.append(f"{index} ({free / _GIB:.0f} GiB free)")
    if taken:
        what = f"less than half of the memory is free on device {', '.join(taken)}"
        yield Check("devices", f"{kind}-memory", "warn", what, "another process uses them: measurements will vary")


def _unseen(cuda: Mapping[str, object], build: str, maker: str, files: list[Path]) -> Check:
    if build == "cpu":
        fix = "install the build of torch for this device (PyTorch's site has the command)"
        return Check("devices", "build", "fail", f"{maker} devices are here, but this torch is built for the CPU", fix)
    closed = [str(path) for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        fix = "join the group that owns it (see `ls -l`; usually render or video), or run within a job"
        return Check("devices", "permission", "fail", f"this user may not open {closed[0]}", fix)
    why = fields.text(cuda.get("why")) or "no reason given"
    fix = "the driver must be as new as torch's build requires; in a container, add --nv or --rocm"
    return Check("devices", "unseen", "fail", f"{maker} devices are here, but torch does not see them: {why}", fix)


def _backends(report: Mapping[str, object], count: Mapping[str, int]) -> Iterator[Check]:
    found = fields.mapping(report.get("backends"))
    if not found:
        if "backends" in report:
            fix = "this torch was built without torch.distributed: install another build"
            yield Check("backends", "distributed", "fail", "torch.distributed is not available", fix)
        return
    there = [name for name, is_there in found.items() if is_there is True]
    nccl = fields.text(found.get("nccl_version"))
    what = ", ".join(f"{name} {nccl}" if name == "nccl" and nccl else name for name in there) or "none"
    lacking = [
        (kind, name)
        for kind, name in (("cuda", "nccl"), ("xpu", "xccl"))
        if count[kind] and found.get(name) is not True
    ]
    for kind, name in lacking:
        fix = f"install a build of torch with {name}; oneccl_bindings_for_pytorch brings ccl to older ones on XPU"
        yield Check("backends", name, "fail", f"{kind} devices are here, but this torch has no {name}", fix)
    if not lacking:
        yield Check("backends", "backends", "ok" if there else "fail", what)


def _profiler(report: Mapping[str, object], count: Mapping[str, int]) -> Iterator[Check]:
    found = fields.mapping(report.get("profiler"))
    if not found:
        return
    activities = fields.items(found.get("activities"), fields.text)
    lacking = [kind for kind, name in (("cuda", "CUDA"), ("xpu", "XPU")) if count[kind] and name not in activities]
    if found.get("kineto") is not True:
        fix = "install a build of torch with Kineto (USE_KINETO=1): without it there are no traces"
        yield Check("profiler", "kineto", "fail", "torch was built without Kineto", fix)
    elif lacking:
        fix = "CUPTI (roctracer, PTI) is missing or not of torch's version: see LD_LIBRARY_PATH"
        yield Check("profiler", "activities", "fail", f"the profiler records no {lacking[0]} activity here", fix)
    else:
        yield Check("profiler", "activities", "ok", f"records {', '.join(activities)}")

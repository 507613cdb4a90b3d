"""Settings, process group and training loop of all workloads.

In: options of the command line. Out: training steps on each rank, and a summary from rank 0.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import count
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from rankscope.capture import Profiler
from rankscope.errors import ConfigError
from rankscope.rundir.launcher import identify
from rankscope.rundir.options import option, options_of
from rankscope.rundir.plurals import counted

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
T = TypeVar("T")
_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}


@dataclass(frozen=True)
class Settings:
    """Options of all workloads; some defaults differ between workloads."""

    steps: int = option(100, "Training steps")
    batch_size: int = option(10, "Samples per rank and step")
    dtype: str = option("auto", "float32, bfloat16, float16; auto is bfloat16 on accelerators and float32 on the CPU")
    compile: bool = option(False, "Compile the model with torch.compile")
    seed: int = option(0, "Seed of the model, the same on all ranks, and of the data, which differ")
    device: str = option("auto", "cuda (also ROCm), xpu, cpu; auto is the accelerator, if there is one")
    wrap_alone: bool = option(False, "Use DDP in a job of one rank, too")
    profile: bool = option(True, "Profile the loop")
    save_dir: str | None = option(None, "Run directory of the profile")
    ranks: str | None = option(None, "Ranks to profile")
    wait: int | None = option(None, "Steps before each warm-up")
    warmup: int | None = option(None, "Steps of warm-up")
    active: int | None = option(None, "Steps to record")
    repeat: int | None = option(None, "Windows to record")
    record_shapes: bool | None = option(None, "Record the shapes of operators' inputs")
    with_stack: bool | None = option(None, "Record Python stacks")
    profile_memory: bool | None = option(None, "Record allocations")


@dataclass(frozen=True)
class JobContext:
    """Rank, world size, device and dtype of this process."""

    rank: int
    world_size: int
    device: torch.device
    dtype: torch.dtype

    @property
    def distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.world_size > 1

    def autocast(self) -> torch.autocast | nullcontext[None]:
        """Compute in ``dtype`` where that is not float32."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


@dataclass(frozen=True)
class Outcome:
    """The result of a training, on this rank."""

    steps: int
    parameters: int
    first_loss: float
    last_loss: float
    step_time_s: float
    """Median over the second half of the steps."""


def parse(
    name: str, doc: str | None, defaults: Settings, extra: argparse.ArgumentParser | None = None
) -> argparse.Namespace:
    """Read the command line of a workload: one option for each field of :class:`Settings`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m rankscope.capture.workloads.{name}",
        description=(doc or "").partition("\n")[0],
        parents=[] if extra is None else [extra],
    )
    options = options_of(Settings)
    for field in fields(Settings):
        name, default = "--" + field.name.replace("_", "-"), getattr(defaults, field.name)
        text = options[field.name].help
        if "bool" in str(field.type):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default, help=text)
        else:
            kind = int if "int" in str(field.type) else str
            parser.add_argument(name, type=kind, default=default, help=f"{text} (default: {default})")
    return parser.parse_args()


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The :class:`Settings` of a command line."""
    return Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})


def pick_device(name: str, local_rank: int) -> torch.device:
    """The device of this rank: one accelerator per local rank.

    Raises:
        ConfigError: there is no such device.
    """
    if name not in ("auto", *_BACKENDS):
        raise ConfigError(f"device {name!r} is not known", hint="auto, cuda, xpu or cpu")
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if name in ("auto", kind) and module is not None and module.is_available():
            # Launchers often make only one device visible to each rank.
            return torch.device(kind, local_rank % module.device_count())
        if name == kind:
            raise ConfigError(f"there is no {kind} device here", hint="--device cpu, or --device auto")
    return torch.device("cpu")


@contextmanager
def joined(settings: Settings, *, always: bool = False) -> Iterator[JobContext]:
    """Join the job: find out rank and device, and set up the process group; destroy it in the end.

    Args:
        settings: the workload's.
        always: set up a process group even for a single process, as FSDP needs it.

    Raises:
        ConfigError: an unknown device or dtype.
        LauncherError: launcher variables that contradict each other.
    """
    launch = identify(os.environ)
    alone = launch.rank is None or not launch.started_by_launcher
    rank, world_size = (0, 1) if alone else (launch.rank or 0, launch.world_size or 1)
    device = pick_device(settings.device, launch.local_rank or 0)
    if settings.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {settings.dtype!r} is not known", hint=", ".join(["auto", *DTYPES]))
    if settings.dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    else:
        dtype = DTYPES[settings.dtype]
    if device.type == "cpu":
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
    else:
        getattr(torch, device.type).set_device(device)
    torch.manual_seed(settings.seed)
    has_group = (world_size > 1 or always or settings.wrap_alone) and not dist.is_initialized()
    if has_group:
        backend, group_device = _BACKENDS[device.type], None if device.type == "cpu" else device
        if world_size == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]  # it is defined in C++
            dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=group_device)
        else:
            # srun and mpiexec set other variables; torch reads these two.
            os.environ.setdefault("RANK", str(rank))
            os.environ.setdefault("WORLD_SIZE", str(world_size))
            dist.init_process_group(backend, device_id=group_device)
    try:
        yield JobContext(rank, world_size, device, dtype)
    finally:
        if has_group:
            dist.destroy_process_group()
            # FSDP modules are reference cycles that keep the group and its threads alive. If a thread still releases a
            # Python object while the interpreter exits, as with Gloo, the process aborts.
            gc.collect()


def distribute(model: nn.Module, context: JobContext, settings: Settings) -> nn.Module:
    """Move a model to its device, wrap it in DDP if there are other ranks, and compile it if requested."""
    model = model.to(context.device)
    if context.distributed or settings.wrap_alone:
        ids = None if context.device.type == "cpu" else [context.device]
        model = nn.parallel.DistributedDataParallel(model, device_ids=ids)
    if settings.compile:
        model.compile()
    return model


def backward(loss: torch.Tensor) -> None:
    """Compute gradients."""
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here


def training_step(
    batches: Iterator[Sequence[torch.Tensor]],
    loss_of: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    context: JobContext,
) -> Callable[[int], torch.Tensor]:
    """A function for `loop` that trains on the next batch.

    Args:
        batches: tensors on any device.
        loss_of: the loss of a batch's tensors; it runs with autocast.
        optimizer: what makes the step.
        context: the job.
    """

    def step(_index: int) -> torch.Tensor:
        batch = [each.to(context.device, non_blocking=True) for each in next(batches)]
        optimizer.zero_grad(set_to_none=True)
        with context.autocast():
            loss = loss_of(*batch)
        backward(loss)
        optimizer.step()
        return loss

    return step


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; of a sharded model, those on this rank."""
    return sum(p.numel() for p in model.parameters())


def loop(
    name: str, step: Callable[[int], torch.Tensor], parameters: int, context: JobContext, settings: Settings
) -> Outcome:
    """Run ``settings.steps`` steps under the profiler; rank 0 prints the result.

    Args:
        name: name of the workload.
        step: runs one training step and returns its loss.
        parameters: number of parameters of the entire model.
    """
    times: list[float] = []
    first = last = torch.zeros(())
    with _profiler(settings) as profiler:
        for index in range(settings.steps):
            began = time.perf_counter()
            last = step(index).detach()
            first = last if index == 0 else first
            if profiler is not None:
                profiler.step()
            times.append(time.perf_counter() - began)
    outcome = Outcome(
        steps=settings.steps,
        parameters=parameters,
        first_loss=float(first),
        last_loss=float(last),
        step_time_s=statistics.median(times[len(times) // 2 :] or [0.0]),
    )
    if context.rank == 0:
        print(
            f"{name}: {outcome.steps} steps on {counted(context.world_size, 'rank')} ({context.device.type}), "
            f"{outcome.step_time_s * 1e3:.1f} ms per step, loss {outcome.first_loss:.4f} to {outcome.last_loss:.4f}",
            flush=True,
        )
    return outcome


def repeated(loader: DataLoader[T], sampler: DistributedSampler[T]) -> Iterator[T]:
    """Batches without end, shuffled again in each epoch."""
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def _profiler(settings: Settings) -> Profiler | nullcontext[None]:
    if not settings.profile:
        return nullcontext()
    return Profiler(
        settings.save_dir,
        ranks=settings.ranks,
        wait=settings.wait,
        warmup=settings.warmup,
        active=settings.active,
        repeat=settings.repeat,
        record_shapes=settings.record_shapes,
        with_stack=settings.with_stack,
        profile_memory=settings.profile_memory,
    )

"""ResNet-18 under DDP: SGD on fixed random images with MSE, or on CIFAR-10 with cross entropy.

In: options of the command line. Out: training steps on each rank, and a summary from rank 0.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from rankscope.capture.workloads.cifar10 import Cifar10
from rankscope.capture.workloads.job import (
    JobContext,
    Outcome,
    Settings,
    count_parameters,
    distribute,
    joined,
    loop,
    parse,
    repeated,
    settings_of,
    training_step,
)
from rankscope.capture.workloads.resnet import resnet18
from rankscope.errors import ConfigError

DEFAULTS = Settings(steps=100, batch_size=10)
_RANDOM_CLASSES, _CIFAR_CLASSES = 1000, 10
_AUGMENTED = {"cpu": 1.0}
"""The part of the images that the slow rank augments: on an accelerator a step is much shorter."""
_AUGMENTED_ELSEWHERE = 0.02


def train(
    settings: Settings = DEFAULTS,
    *,
    data: str = "random",
    data_dir: str | None = None,
    workers: int = 2,
    image_size: int | None = None,
    slow_rank: int | None = None,
) -> Outcome:
    """Train.

    Args:
        settings: settings of all workloads.
        data: ``random``, or ``cifar10`` from ``data_dir``.
        data_dir: the folder with CIFAR-10.
        workers: processes of the DataLoader, with CIFAR-10.
        image_size: pixels; 32 with CIFAR-10, else 224 on accelerators and 64 on the CPU, where 224 takes a second a
            step.
        slow_rank: a rank whose loader augments the random images in Python, so that the others wait for it.

    Raises:
        ConfigError: an argument is not valid.
    """
    if data not in ("random", "cifar10"):
        raise ConfigError(f"data {data!r} is not known", hint="random, or cifar10")
    with joined(settings) as context:
        model = distribute(resnet18(_RANDOM_CLASSES if data == "random" else _CIFAR_CLASSES), context, settings)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches: Iterator[tuple[torch.Tensor, ...]]
        criterion: nn.Module
        if data == "random":
            size = image_size or (64 if context.device.type == "cpu" else 224)
            batches, criterion = _random_batches(context, settings, size), nn.MSELoss()
            if slow_rank is not None:
                share = _AUGMENTED.get(context.device.type, _AUGMENTED_ELSEWHERE)
                data_set = _Batches(batches, share if context.rank == slow_rank else 0.0)
                batches = iter(DataLoader(data_set, batch_size=None))
        elif data_dir is None:
            raise ConfigError("cifar10 needs its folder", hint="--data-dir DIR")
        else:
            batches = _cifar_batches(context, settings, data_dir, workers, image_size or 32)
            criterion = nn.CrossEntropyLoss()

        def loss_of(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = criterion(model(images), targets)
            return loss

        step = training_step(batches, loss_of, optimizer, context)
        return loop("resnet18", step, count_parameters(model), context, settings)


def _random_batches(context: JobContext, settings: Settings, size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    # The data differ between ranks; the model does not.
    generator = torch.Generator().manual_seed(settings.seed + 1 + context.rank)
    images = torch.randn(settings.batch_size, 3, size, size, generator=generator).to(context.device)
    targets = torch.randn(settings.batch_size, _RANDOM_CLASSES, generator=generator).to(context.device)
    return itertools.repeat((images, targets))


class _Batches(IterableDataset[tuple[torch.Tensor, ...]]):
    """Batches for a loader; on the slow rank it augments them.

    Args:
        batches: the batches.
        augmented: the part of each batch that is augmented.
    """

    def __init__(self, batches: Iterator[tuple[torch.Tensor, ...]], augmented: float) -> None:
        self._batches, self._augmented = batches, augmented

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for images, targets in self._batches:
            yield augment_in_python(images, self._augmented) if self._augmented else images, targets


def augment_in_python(images: torch.Tensor, part: float) -> torch.Tensor:
    """Brightness and contrast of a part of the images in a few rounds, value by value, as no job should do it."""
    flat = images.flatten()
    count = int(part * flat.numel())
    values: list[float] = flat[:count].tolist()
    for contrast in (1.05, 0.95, 1.02, 0.98):
        mean = sum(values) / max(len(values), 1)
        values = [min(max(contrast * (value - mean) + mean + 0.01, -4.0), 4.0) for value in values]
    return torch.cat([torch.tensor(values, device=images.device), flat[count:]]).view_as(images)


def _cifar_batches(
    context: JobContext, settings: Settings, data_dir: str, workers: int, size: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    dataset = Cifar10(data_dir, size)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(
        dataset, num_replicas=context.world_size, rank=context.rank, seed=settings.seed, drop_last=True
    )
    if len(sampler) < settings.batch_size:
        raise ConfigError(
            f"{len(sampler)} images per rank are fewer than a batch of {settings.batch_size}", path=data_dir
        )
    loader = DataLoader(
        dataset,
        batch_size=settings.batch_size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=context.device.type != "cpu",
        persistent_workers=workers > 0,
        drop_last=True,
    )
    return repeated(loader, sampler)


def main() -> None:
    """The command line."""
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--data", choices=["random", "cifar10"], default="random", help="What to train on")
    extra.add_argument("--data-dir", help="The folder with CIFAR-10, python or binary version")
    extra.add_argument("--workers", type=int, default=2, help="Processes of the DataLoader (default: 2)")
    extra.add_argument("--image-size", type=int, help="Pixels; by default 32 for CIFAR-10, else 224, on the CPU 64")
    extra.add_argument("--slow-rank", type=int, help="A rank whose loader augments the images in Python")
    arguments = parse("resnet18", __doc__, DEFAULTS, extra)
    train(
        settings_of(arguments),
        data=arguments.data,
        data_dir=arguments.data_dir,
        workers=arguments.workers,
        image_size=arguments.image_size,
        slow_rank=arguments.slow_rank,
    )


if __name__ == "__main__":
    main()

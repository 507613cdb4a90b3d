"""torch.nn.Transformer under DDP: 1 source and 20 target tokens, Adam with its rate scaled by the world size.

In: options of the command line. Out: training steps on each rank, and a summary from rank 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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

DEFAULTS = Settings(steps=100, batch_size=32)
SOURCE_TOKENS, TARGET_TOKENS = 1, 20
_SAMPLES_PER_RANK = 1024
_RATE = 1e-3


def train(settings: Settings = DEFAULTS, *, d_model: int = 512, layers: int = 6) -> Outcome:
    """Train.

    Args:
        settings: settings of all workloads.
        d_model: the width of the model.
        layers: layers of the encoder, and of the decoder.
    """
    with joined(settings) as context:
        network = nn.Transformer(d_model, 8, layers, layers, 4 * d_model, batch_first=True)
        model = distribute(network, context, settings)
        # Each rank has its own batch, so the global batch grows with the ranks, and the rate with it.
        optimizer = torch.optim.Adam(model.parameters(), lr=_RATE * context.world_size)
        criterion = nn.MSELoss()

        def loss_of(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = criterion(model(source, target), target)
            return loss

        step = training_step(_batches(context, settings, d_model), loss_of, optimizer, context)
        return loop("transformer", step, count_parameters(model), context, settings)


def _batches(context: JobContext, settings: Settings, d_model: int) -> Iterator[tuple[torch.Tensor, ...]]:
    samples = max(_SAMPLES_PER_RANK, settings.batch_size) * context.world_size
    generator = torch.Generator().manual_seed(settings.seed)
    # All samples are views of one, which saves memory; the model's work does not depend on the values.
    source = torch.rand(1, SOURCE_TOKENS, d_model, generator=generator).expand(samples, -1, -1)
    target = torch.rand(1, TARGET_TOKENS, d_model, generator=generator).expand(samples, -1, -1)
    dataset = TensorDataset(source, target)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        dataset, num_replicas=context.world_size, rank=context.rank, seed=settings.seed
    )
    loader = DataLoader(
        dataset,
        batch_size=settings.batch_size,
        sampler=sampler,
        pin_memory=context.device.type != "cpu",
        drop_last=True,
    )
    return repeated(loader, sampler)


def main() -> None:
    """The command line."""
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--d-model", type=int, default=512, help="Width of the model (default: 512)")
    extra.add_argument("--layers", type=int, default=6, help="Layers of the encoder, and of the decoder (default: 6)")
    arguments = parse("transformer", __doc__, DEFAULTS, extra)
    train(settings_of(arguments), d_model=arguments.d_model, layers=arguments.layers)


if __name__ == "__main__":
    main()

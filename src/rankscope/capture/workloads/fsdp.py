"""A small decoder-only language model under FSDP2 (fully_shard), or under FSDP1 with full sharding.

In: options of the command line. Out: training steps on each rank.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

from rankscope.capture.workloads.job import (
    JobContext,
    Outcome,
    Settings,
    backward,
    count_parameters,
    joined,
    loop,
    parse,
    settings_of,
)

DEFAULTS = Settings(steps=100, batch_size=4)
_VOCABULARY = 512


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) in and out."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        out: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Decoder(nn.Module):
    """Embedding, blocks, and scores over the vocabulary."""

    def __init__(self, width: int, layers: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token numbers (batch, tokens) in, scores (batch, tokens, vocabulary) out."""
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


def train(
    settings: Settings = DEFAULTS,
    *,
    fsdp1: bool = False,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    tokens: int = 128,
) -> Outcome:
    """Train.

    Args:
        settings: settings of all workloads.
        fsdp1: shard with ``FullyShardedDataParallel`` instead of ``fully_shard``.
        width, layers, heads: size of the model.
        tokens: length of a sequence.
    """
    with joined(settings, always=True) as context:
        return _train(lambda: Decoder(width, layers, heads, tokens), context, settings, fsdp1, tokens)


def _train(make: Callable[[], Decoder], context: JobContext, settings: Settings, fsdp1: bool, tokens: int) -> Outcome:
    # A separate function, so that everything that refers to the process group is gone when `joined` ends it.
    network = make().to(context.device)
    # Count parameters before sharding, which leaves each rank a part.
    parameters = count_parameters(network)
    model = _fsdp1(network, context) if fsdp1 else _fsdp2(network, context)
    if settings.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(settings.seed + 1 + context.rank)
    text = torch.randint(_VOCABULARY, (settings.batch_size, tokens + 1), generator=generator).to(context.device)

    def step(_index: int) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        scores = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), text[:, 1:].flatten())
        backward(loss)
        optimizer.step()
        return loss

    return loop("fsdp1" if fsdp1 else "fsdp2", step, parameters, context, settings)


def _fsdp2(network: Decoder, context: JobContext) -> nn.Module:
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # torch 2.4 and 2.5 have it in another module
        from torch.distributed._composable.fsdp import (  # type: ignore[attr-defined]  # not in newer ones
            MixedPrecisionPolicy,
            fully_shard,
        )
    policy = MixedPrecisionPolicy(param_dtype=None if context.dtype is torch.float32 else context.dtype)
    for block in network.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(network, mp_policy=policy)
    return network


def _fsdp1(network: Decoder, context: JobContext) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    mixed = None if context.dtype is torch.float32 else MixedPrecision(param_dtype=context.dtype)
    # With a single process FSDP1 would warn and fall back to NO_SHARD.
    strategy = ShardingStrategy.FULL_SHARD if context.distributed else ShardingStrategy.NO_SHARD
    return FullyShardedDataParallel(
        network,
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=mixed,
        use_orig_params=True,
        device_id=context.device,
    )


def main() -> None:
    """The command line."""
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--fsdp1", action="store_true", help="FullyShardedDataParallel instead of fully_shard")
    extra.add_argument("--width", type=int, default=256, help="Width of the model (default: 256)")
    extra.add_argument("--layers", type=int, default=4, help="Layers of the model (default: 4)")
    extra.add_argument("--tokens", type=int, default=128, help="Tokens of a sequence (default: 128)")
    arguments = parse("fsdp", __doc__, DEFAULTS, extra)
    train(
        settings_of(arguments),
        fsdp1=arguments.fsdp1,
        width=arguments.width,
        layers=arguments.layers,
        tokens=arguments.tokens,
    )


if __name__ == "__main__":
    main()

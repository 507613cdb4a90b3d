"""Which ranks to profile: ``"all"``, ``"0, 2, 4"``, ``"0-3"``, ``"every:8"``, ``"node"``, or any of them
joined.

``node`` is the first rank of every host (local rank 0), ``every:8`` each rank that 8 divides, ``none`` no
rank.

In: such an expression, or integers. Out: whether this rank is one of them, and messages about ranks that do not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Union  # noqa: UP035  # with subscripts on Python 3.8, which `exec` loads this file with

from rankscope.errors import ConfigError
from rankscope.rundir.ranges import parse_range

RanksLike = Union[str, int, Iterable[int]]  # noqa: UP007  # as above

_HINT = 'such as "all", "0, 2, 4", "0-3", "every:8", "node" or "0,4-7"'
MAX_RANK = 10_000_000


@dataclass(frozen=True)
class RankChoice:
    """A parsed expression."""

    expression: str
    everyone: bool = False
    first_of_node: bool = False
    every: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """First and last rank of each, both inclusive."""

    def selects(self, rank: int, local_rank: int | None = None) -> bool:
        """Whether this rank is chosen. With an unknown local rank, ``node`` chooses rank 0 alone."""
        if self.everyone or any(rank % n == 0 for n in self.every):
            return True
        if self.first_of_node and (local_rank == 0 if local_rank is not None else rank == 0):
            return True
        return any(first <= rank <= last for first, last in self.spans)

    def doubts(self, rank: int, local_rank: int | None, world_size: int) -> list[str]:
        """Warnings about this choice in this job, for rank 0 to give: ranks that the job does not have …"""
        warnings = []
        beyond = sorted({last for _, last in self.spans if last >= world_size})
        if beyond and rank == 0:
            ranks = ", ".join(map(str, beyond))
            warnings.append(f"ranks {ranks}: this job has {world_size}, 0 to {world_size - 1}")
        if self.first_of_node and local_rank is None and rank == 0:
            warnings.append('the first rank of each host is not known: "node" profiles rank 0 alone')
        return warnings


def parse_ranks(ranks: RanksLike) -> RankChoice:
    """Read an expression, a rank, or several ranks.

    Raises:
        ConfigError: it is not valid.
    """
    if isinstance(ranks, bool):
        raise ConfigError(f"ranks={ranks!r} is not a rank", hint=f"give an expression {_HINT}")
    if isinstance(ranks, str):
        return _parse_text(ranks)
    try:
        numbers = [ranks] if isinstance(ranks, int) else list(ranks)
    except TypeError:
        raise ConfigError(
            f"ranks={ranks!r} is neither text nor whole numbers", hint=f"give an expression {_HINT}"
        ) from None
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_RANK:
            raise ConfigError(f"ranks: {number!r} is not a rank", hint="ranks are whole numbers from 0")
    spans = _merge((number, number) for number in numbers)
    return RankChoice(", ".join(map(str, numbers)) or "none", spans=spans)


def _parse_text(text: str) -> RankChoice:
    everyone = first_of_node = False
    every: list[int] = []
    spans: list[tuple[int, int]] = []
    for part in text.split(","):
        item = part.strip().lower()
        if item == "all":
            everyone = True
        elif item == "node":
            first_of_node = True
        elif item == "none" and text.strip().lower() == "none":
            pass
        elif match := re.fullmatch(r"every\s*:\s*([0-9]{1,8})", item):
            if int(match[1]) == 0:
                raise ConfigError(f'ranks {text!r}: "every:0" chooses nothing', hint="every:1 is all ranks")
            every.append(int(match[1]))
        elif span := parse_range(item):
            first, last = span
            if last < first:
                raise ConfigError(f"ranks {text!r}: {item!r} runs backwards", hint=f'did you mean "{last}-{first}"?')
            if last > MAX_RANK:
                raise ConfigError(f"ranks {text!r}: {last} is too large for a rank")
            spans.append((first, last))
        else:
            what = f"{item!r} is not understood" if item else "a rank is missing"
            raise ConfigError(f"ranks {text!r}: {what}", hint=f"give an expression {_HINT}")
    return RankChoice(text.strip(), everyone, first_of_node, tuple(every), _merge(spans))


def _merge(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)

"""Collectives that the ranks of a group called differently under the same number: another operation, type or size.

An operation that differs means that the ranks are out of step. Types and sizes are compared only where they have to be
equal, and only in the latest collective of a group or in one that is stuck: lists of tensors and an all-to-all may be
uneven.

In: the progress of the ranks. Out: the first mismatch of the job, with the ranks behind each variant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from rankscope.answers.hang.arrivals import Arrivals, Stuck
from rankscope.answers.hang.records import Call

# Every rank has to give as many elements as the others.
_EQUAL_INPUTS = frozenset(
    ("all_reduce", "allreduce_coalesced", "reduce", "broadcast", "_broadcast_oop", "_reduce_oop", "_all_gather_base",
     "all_gather_into_tensor_coalesced", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
)  # fmt: skip
OPERATION, DTYPE, SIZE = "operation", "dtype", "size"


@dataclass(frozen=True)
class Variant:
    """What some ranks called."""

    ranks: tuple[int, ...]
    operation: str
    dtypes: tuple[str, ...]
    elements: int
    """Elements of the input on each rank."""
    call: Call
    """Of the first of these ranks."""


@dataclass(frozen=True)
class Mismatch:
    """A collective that was called in several ways."""

    stuck: Stuck
    differs: str
    """``operation``, ``dtype`` or ``size``."""
    variants: tuple[Variant, ...]
    """The most frequent first."""

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that did not call what most did; all where no variant has a majority."""
        most = len(self.variants[0].ranks)
        total = sum(len(variant.ranks) for variant in self.variants)
        others = self.variants[1:] if 2 * most > total else self.variants
        return tuple(sorted(rank for variant in others for rank in variant.ranks))


def find_mismatch(arrivals: Arrivals, stuck: list[Stuck]) -> Mismatch | None:
    """The mismatch that was called first; None if there is none."""
    found = [mismatch for each in stuck if (mismatch := _compare(each, deep=True))]
    for group, by_rank in arrivals.progress.items():
        if len(by_rank) < 2:
            continue
        numbers = sorted({number for progress in by_rank.values() for number in progress.calls})
        latest = numbers[-1:]
        first = next((m for n in numbers if (m := _compare(arrivals.at(group, n), deep=n in latest))), None)
        found += [first] if first else []
    return min(found, key=lambda mismatch: (mismatch.stuck.created_ns, mismatch.stuck.sequence), default=None)


def _compare(stuck: Stuck, *, deep: bool) -> Mismatch | None:
    """The mismatch of one collective.

    Args:
        stuck: the collective.
        deep: compare types and sizes as well.
    """
    if any(len(calls) > 1 for calls in stuck.calls.values()):
        return None  # coalesced calls have several entries under one number
    # While a group's communicator is made, what its ranks call does not matter yet.
    calls = {rank: calls[0] for rank, calls in stuck.calls.items() if calls[0].recorded}
    if len(calls) < 2:
        return None
    if len({call.operation for call in calls.values()}) > 1:
        return Mismatch(stuck, OPERATION, _variants(calls, lambda call: call.operation))
    operation = next(iter(calls.values())).operation
    if not deep:
        return None
    if len({call.dtypes for call in calls.values() if call.dtypes}) > 1:
        return Mismatch(stuck, DTYPE, _variants(calls, lambda call: call.dtypes))
    if operation in _EQUAL_INPUTS and len({call.elements for call in calls.values()}) > 1:
        return Mismatch(stuck, SIZE, _variants(calls, lambda call: call.elements))
    return None


def _variants(calls: dict[int, Call], key: Callable[[Call], object]) -> tuple[Variant, ...]:
    ranks: dict[object, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        ranks[key(call)].append(rank)
    variants = [
        Variant(tuple(members), (call := calls[members[0]]).operation, call.dtypes, call.elements, call)
        for members in ranks.values()
    ]
    return tuple(sorted(variants, key=lambda variant: (-len(variant.ranks), variant.ranks)))

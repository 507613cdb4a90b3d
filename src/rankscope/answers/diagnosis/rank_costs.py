"""What a finding costs on each rank: a rule states the worst rank's figure, or the mean; its analysis has the others.

In: a finding, and results of analyses. Out: ns per step by rank, in the proportions of the analysis and scaled so that
they agree with the finding's saving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from rankscope.answers.diagnosis.step_costs import per_step, step_of, usual, usual_per_step
from rankscope.primitives.annotation_origin import garbage_collections
from rankscope.results import Finding, Inputs

Measured = Mapping[int, float]


@dataclass(frozen=True)
class RankCosts:
    """What a finding costs by rank.

    Attributes:
        by_rank: ns per step.
        is_mean: whether its saving is the mean over ranks; else it is that of the worst rank.
    """

    by_rank: Mapping[int, float]
    is_mean: bool

    def total(self, by_rank: Mapping[int, float] | None = None) -> float:
        """The saving that costs by rank amount to, ns."""
        values = list((self.by_rank if by_rank is None else by_rank).values())
        if not values:
            return 0.0
        return sum(values) / len(values) if self.is_mean else max(values)


def rank_costs(finding: Finding, inputs: Inputs, ranks: frozenset[int]) -> RankCosts:
    """What a finding costs on each rank; if no analysis tells, as much on each of its ranks.

    Args:
        ranks: the run's.
    """
    saving = float(finding.saving_ns or 0)
    measure, is_mean = _MEASURES.get(finding.id, (None, False))
    found = measure(finding, inputs) if measure is not None else {}
    costs = RankCosts({rank: max(0.0, value) for rank, value in found.items() if rank in ranks}, is_mean)
    total = costs.total()
    if total > 0:
        return RankCosts({rank: value * saving / total for rank, value in costs.by_rank.items()}, is_mean)
    return RankCosts(dict.fromkeys(finding.ranks or ranks, saving), is_mean)


def _frame(inputs: Inputs, name: str) -> pl.DataFrame | None:
    frame = inputs.results.get(name)
    return None if frame is None or frame.is_empty() else frame


def _per_step(frame: pl.DataFrame, column: str, finding: Finding) -> Measured:
    """What a step of each rank has: the mean step where the finding is about that, otherwise the median one.

    Of what only some steps have, the median has nothing, or as much on each rank.
    """
    _, is_mean = step_of(finding, 0)
    if not is_mean:
        return dict(usual(frame, column).iter_rows())
    return dict(frame.group_by("rank").agg(pl.col(column).mean()).drop_nulls().sort("rank").iter_rows())


def _gaps(finding: Finding, inputs: Inputs) -> Measured:
    frame = _frame(inputs, "idle_by_step")
    columns = {
        "launch_bound": "late_ns",
        "memory_retries": "allocator_ns",
        "silent_host": "silent_ns",
        "long_calls": "long_calls_ns",
    }
    column = columns.get(finding.id, "late_short_ns")
    return {} if frame is None else _per_step(frame, column, finding)


def _synchronization(finding: Finding, inputs: Inputs) -> Measured:
    frame = _frame(inputs, "synchronization")
    return {} if frame is None else dict(frame.group_by("rank").agg(pl.col("per_step_ns").sum()).iter_rows())


def _data_loading(finding: Finding, inputs: Inputs) -> Measured:
    frame = _frame(inputs, "step_time")
    return {} if frame is None else _per_step(frame, "data_loading_ns", finding)


def _collections(finding: Finding, inputs: Inputs) -> Measured:
    frame = _frame(inputs, "annotations")
    if frame is None:
        return {}
    return per_step(garbage_collections(frame), "host_in_steps_ns", inputs)


def _compute_above_mean(finding: Finding, inputs: Inputs) -> Measured:
    compute = usual_per_step(inputs, "compute_ns")
    mean = sum(compute.values()) / len(compute) if compute else 0.0
    own = set(finding.ranks)
    return {rank: value - mean for rank, value in compute.items() if rank in own}


def _exposed_transfer(finding: Finding, inputs: Inputs) -> Measured:
    frame = _frame(inputs, "distributed")
    if frame is None:
        return usual_per_step(inputs, "exposed_communication_ns")
    transfer = pl.col("exposed_transfer_ns") + pl.col("exposed_unmatched_ns")
    return _per_step(frame.with_columns(transfer.alias("open_ns")), "open_ns", finding)


_MEASURES: Mapping[str, tuple[Callable[[Finding, Inputs], Measured], bool]] = {
    "launch_bound": (_gaps, False),
    "small_kernels": (_gaps, False),
    "memory_retries": (_gaps, False),
    "silent_host": (_gaps, False),
    "long_calls": (_gaps, False),
    "synchronizing_calls": (_synchronization, False),
    "data_loading": (_data_loading, False),
    "gc_pauses": (_collections, False),
    "imbalance": (_compute_above_mean, False),
    "mesh-imbalance": (_compute_above_mean, True),
    "exposed_communication": (_exposed_transfer, True),
    "small_problem": (_exposed_transfer, True),
}
"""By id: costs by rank up to a factor, and whether the finding's saving is their mean."""

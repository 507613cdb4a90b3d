"""What something costs per step, and how severe that is: the arithmetic and the words that rules share.

In: results of analyses (`rankscope.results.Inputs`). Out: step times and costs per rank in ns, severities, phrases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.results import Inputs, Severity

WARNING_SHARE = 0.05
"""Of a step: what costs more is worth a person's evening."""
INFO_SHARE = 0.01
"""Of a step: what costs less is not worth a line."""
MEMORY_WARNING = 0.95
"""Of a device's memory: with less left a longer sequence, or a fragment too many, ends the job."""
MEMORY_INFO = 0.85


def step_ns(inputs: Inputs) -> int | None:
    """The median over steps of the slowest rank's window, ns; None where there is no step time."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return None
    slowest = frame.group_by("step", "window").agg(pl.col("window_ns").max())["window_ns"].median()
    return round(slowest) if isinstance(slowest, int | float) and slowest > 0 else None


def severity_of(saving: int, step: int | None) -> Severity | None:
    """How weighty a saving is; None where it is not worth a finding."""
    if step is None or saving < INFO_SHARE * step:
        return None
    return "warning" if saving >= WARNING_SHARE * step else "info"


def mean_of(values: pl.Series) -> float:
    """The mean of the values that there are; 0 of none."""
    known = values.drop_nulls()
    return float(known.to_numpy().mean()) if known.len() else 0.0


def mean_per_step(inputs: Inputs, column: str) -> dict[int, int]:
    """By rank the mean over its steps of a column of `step_time`, ns."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    means = frame.group_by("rank").agg(pl.col(column).mean()).drop_nulls().sort("rank")
    return {int(rank): round(value) for rank, value in means.iter_rows()}


def steps_of(inputs: Inputs) -> tuple[int, ...]:
    """The steps that were looked at."""
    frame = inputs.results.get("step_time")
    return () if frame is None else tuple(frame["step"].drop_nulls().unique().sort().to_list())


@dataclass(frozen=True)
class Spoken:
    """How a rule speaks of what its figures are of: a step, or in files that mark none the window."""

    noun: str
    whole: str
    each: str
    per: str
    rate: str
    length: str

    def share(self, amount: float, step: int) -> str:
        """How much of a step, or of the window, something takes: `26 % of a step`; where it is more, how many times.

        Args:
            amount: ns.
            step: ns, more than 0; it stands among the finding's evidence (`length`), so that the two can be divided.
        """
        if amount > step:
            return f"{amount / step:.1f} times as long as {self.whole}"
        return f"{100 * amount / step:.0f} % of {self.whole}"


def on_worst(inputs: Inputs, rank: int, ranks: Sequence[int]) -> str:
    """Whose figure it is that a title gives: empty in a run of one rank.

    Args:
        rank: the rank that has most.
        ranks: those that the finding is about.
    """
    if len({info.rank for info in inputs.traces}) < 2:
        return ""
    return f" on rank {rank}" if tuple(ranks) == (rank,) else f" at worst, on rank {rank}"


_STEP = Spoken("step", "a step", "each step", "per step", "a step", "step time (median, slowest rank)")
_WINDOW = Spoken("window", "the window", "the window", "in the window", "in the window", "window (slowest rank)")


def spoken(inputs: Inputs) -> Spoken:
    """The words for what figures are of."""
    return _STEP if steps_of(inputs) else _WINDOW


def on_device(inputs: Inputs) -> bool:
    """Whether the run has device events: on the CPU alone there is nothing to launch, and compute is operators."""
    frame = inputs.results.get("device_time")
    kernels = inputs.results.get("kernels")
    if kernels is not None:
        return not kernels.is_empty()
    return frame is not None and bool((frame["compute_ns"] + frame["communication_ns"]).sum())


def step_counts(inputs: Inputs) -> dict[int, int]:
    """By rank how many steps there are to share a whole file's figure among; at least one."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    return {int(rank): int(count) for rank, count in frame.group_by("rank").len().sort("rank").iter_rows()}


def per_step(by_rank: pl.DataFrame, column: str, inputs: Inputs) -> dict[int, int]:
    """By rank a whole file's figure shared among its steps, the greatest first.

    Args:
        by_rank: ``rank`` and the column; null counts as nothing.
    """
    counts = step_counts(inputs)
    summed = by_rank.group_by("rank").agg(pl.col(column).sum()).drop_nulls()
    found = {int(rank): round(value / counts.get(int(rank), 1)) for rank, value in summed.iter_rows()}
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def worth_it(by_rank: Mapping[int, int], step: int | None) -> tuple[int, ...]:
    """The ranks on which a saving is worth a finding."""
    return tuple(sorted(rank for rank, value in by_rank.items() if severity_of(value, step) is not None))


def near_limit(share: float) -> Severity | None:
    """How weighty it is that so much of a device's memory is taken; None where there is room."""
    if share < MEMORY_INFO:
        return None
    return "warning" if share >= MEMORY_WARNING else "info"


def recording_adds(inputs: Inputs) -> dict[int, int]:
    """By rank what the recorded windows take more than the median step that was not recorded, ns."""
    frame = inputs.results.get("step_time")
    plain = {each.rank: each.step_median_ns.get("wait") for each in inputs.capture}
    if frame is None or frame.is_empty():
        return {}
    medians = frame.group_by("rank").agg(pl.col("window_ns").median()).iter_rows()
    return {int(rank): max(0, round(window - usual)) for rank, window in medians if (usual := plain.get(rank))}


def profiler_adds(inputs: Inputs) -> dict[int, int]:
    """By rank what recording adds to the median step, ns; without the ranks of which capture did not measure it."""
    medians = {each.rank: each.step_median_ns for each in inputs.capture if each.rank is not None}
    return {
        rank: max(0, found["active"] - found["wait"])
        for rank, found in medians.items()
        if found.get("active") and found.get("wait")
    }

"""What something costs per step, and how severe that is: the arithmetic and the words that rules share.

In: results of analyses (`rankscope.results.Inputs`). Out: step times and costs per rank in ns, severities, phrases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.primitives.steps import count_steps
from rankscope.results import Evidence, Finding, Inputs, Severity
from rankscope.rundir.plurals import listed, plural

WARNING_SHARE = 0.05
"""Of a step: from this saving on, a finding is a warning."""
INFO_SHARE = 0.01
"""Of a step: below this saving, there is no finding."""
MEMORY_WARNING = 0.95
"""Of a device's memory: with less left, a longer sequence or some fragmentation ends the job."""
MEMORY_INFO = 0.85
"""The same, for a longer batch or a larger model."""
AGAIN = 2
"""Steps: what happens in one alone may be a checkpoint or the start of an epoch, and need not happen again."""
PLACE = ("rank", "window", "step")
"""What a row of an analysis per step is about."""
_SHOWN_STEPS = 3


def step_ns(inputs: Inputs) -> int | None:
    """The median over steps of the slowest rank's window, ns; None without step times."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return None
    slowest = frame.group_by("step", "window").agg(pl.col("window_ns").max())["window_ns"].median()
    return round(slowest) if isinstance(slowest, int | float) and slowest > 0 else None


def mean_step_ns(inputs: Inputs) -> int | None:
    """The mean step of the rank with the longest, ns; None without steps.

    A rank's windows do not overlap, so it is the time that the job takes per step, whichever rank makes it wait.
    """
    frame = inputs.results.get("step_time")
    if frame is None or not steps_of(inputs):
        return None
    slowest = frame.group_by("rank").agg(pl.col("window_ns").mean())["window_ns"].max()
    return round(slowest) if isinstance(slowest, int | float) and slowest > 0 else None


def step_of(finding: Finding, step: int) -> tuple[int, bool]:
    """The step that a finding's saving is a part of, ns, and whether it is the mean one."""
    mean = next((each.value for each in finding.evidence if each.name == MEAN_STEP.length), None)
    return (mean, True) if isinstance(mean, int) else (step, False)


def severity_of(saving: int, step: int | None) -> Severity | None:
    """The severity of a saving; None if it is too small for a finding."""
    if step is None or saving < INFO_SHARE * step:
        return None
    return "warning" if saving >= WARNING_SHARE * step else "info"


def usual(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """What steps usually cost, by rank: medians over a rank's steps, like the step's length.

    A step that stands out (a cold start, a checkpoint, other jobs on the cores) therefore affects no figure. And as
    no step's cost exceeds that step, the median cost never exceeds the median step.

    Args:
        frame: rank and the columns, one row per step.
    """
    return frame.group_by("rank").agg(pl.col(*columns).median()).drop_nulls().sort("rank")


def usual_per_step(inputs: Inputs, column: str) -> dict[int, int]:
    """The median over steps of a column of `step_time`, by rank, ns."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    return {int(rank): round(value) for rank, value in usual(frame, column).iter_rows()}


def unusual(frame: pl.DataFrame, column: str, rank: int, step: int) -> list[Evidence]:
    """Evidence of what `usual` leaves out: a rank's steps that cost more by 5 % of a step or more, and twice as much.

    Args:
        frame: rank, step and the column, one row per step.
        step: the step's length, ns.
    """
    own = frame.filter((pl.col("rank") == rank) & pl.col("step").is_not_null())
    cost, median = pl.col(column), pl.col(column).median()
    more = own.filter((cost > 2 * median) & (cost > median + WARNING_SHARE * step)).sort("step")
    if more.is_empty():
        return []
    most = int(more[column].to_numpy().max())
    return [Evidence(f"left out as unusual: {named_steps(more['step'].to_list())}, at most", most, "ns")]


def named_steps(steps: Sequence[int]) -> str:
    """Steps by number, the first three of many: `step 4`, `steps 4, 7 and 9`, `steps 4, 7, 9 and 5 more`."""
    shown = [str(step) for step in steps[:_SHOWN_STEPS]]
    more = [f"{len(steps) - _SHOWN_STEPS} more"] if len(steps) > _SHOWN_STEPS else []
    return f"{plural('step', len(steps))} {listed(shown + more)}"


def within_available(costs: Mapping[int, int], columns: Sequence[str], inputs: Inputs) -> dict[int, int]:
    """Costs of the mean step, by rank, at most what the rank's steps have, the largest first.

    Of a cost most of which can only be in one step of several, such as a checkpoint's, only what the other steps have
    counts: the rest need not come again.

    Args:
        costs: ns by rank: totals divided by the number of steps.
        columns: of `step_time`: what the saving is taken from. The bound is the mean of their sum.
    """
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return dict(costs)
    has = pl.sum_horizontal(*columns)
    of_rank = frame.group_by("rank").agg(
        has.mean().alias("mean"), ((has.sum() - has.max()) / pl.len()).alias("without_largest"), pl.len().alias("steps")
    )
    bounded = dict(costs)
    for rank, mean, without_largest, steps in of_rank.iter_rows():
        if rank in costs:
            bounded[rank] = min(costs[rank], round(mean))
            if steps > AGAIN and without_largest < bounded[rank] / 2:
                bounded[rank] = round(without_largest)
    return dict(sorted(bounded.items(), key=lambda each: (-each[1], each[0])))


def unrecorded_ranks(inputs: Inputs) -> int:
    """How many ranks of the job have no complete trace here, at least: one if a single rank communicates.

    Without them, waiting for a rank and transferring data cannot be separated in a collective.
    """
    known = "collectives" in inputs.results
    largest = inputs.columns("collectives", "group_size")["group_size"].max() if known else None
    size = max(inputs.world_size or 0, largest if isinstance(largest, int) else 0, 2)
    cut = {info.rank for info in inputs.traces if info.is_incomplete}
    return max(0, size - len({info.rank for info in inputs.traces} - cut))


def shown_size(size: float) -> str:
    """A size, bytes, for a title: `160 B`, `4.19 MB`, `1,074 MB`."""
    if size < 1e5:
        return f"{size / 1e3:.3g} kB" if size >= 1e3 else f"{size:.0f} B"
    shown = size / 1e6
    return f"{shown:,.0f} MB" if shown >= 99.5 else f"{shown:.3g} MB"


def mean_of(values: pl.Series) -> float:
    """The mean of the non-null values; 0 without any."""
    known = values.drop_nulls()
    return float(known.to_numpy().mean()) if known.len() else 0.0


def steps_of(inputs: Inputs) -> tuple[int, ...]:
    """The numbers of the steps that were analyzed, each once."""
    frame = inputs.results.get("step_time")
    return () if frame is None else tuple(frame["step"].drop_nulls().unique().sort().to_list())


def number_of_steps(inputs: Inputs) -> int:
    """How many steps were analyzed: those of windows that number theirs alike are different steps."""
    frame = inputs.results.get("step_time")
    return 0 if frame is None else count_steps(frame)


@dataclass(frozen=True)
class StepWords:
    """Phrases for what a rule's figures refer to: a step, or the recorded span of a file without steps.

    That span is the device's (`step_time`): from its first to its last event; without a device, the complete file."""

    noun: str
    one: str
    per: str
    length: str

    def share(self, amount: float, step: float) -> str:
        """An amount relative to a step or span: `26 % of a step`.

        Args:
            amount: ns, at most `step`.
            step: ns, more than 0. It is part of the finding's evidence (`length`), so that the share can be checked.
        """
        return f"{100 * amount / step:.0f} % of {self.one}"


def on_worst_rank(inputs: Inputs, rank: int, ranks: Sequence[int]) -> str:
    """The rank that a title's figure belongs to, as a phrase: empty in a run of one rank.

    Args:
        rank: the rank with the largest figure.
        ranks: the ranks that the finding is about.
    """
    if len({info.rank for info in inputs.traces}) < 2:
        return ""
    return f" on rank {rank}" if tuple(ranks) == (rank,) else f" on rank {rank} (worst of {len(ranks)} ranks)"


_STEP = StepWords("step", "a step", "per step", "step time (median, slowest rank)")
# Of what is known as a total, or what only some steps have.
MEAN_STEP = StepWords("mean step", "the mean step", "per step", "mean step time (slowest rank)")
# From the first to the last device event: on the host, recording may have begun long before.
_SPAN = StepWords("recorded span", "the recorded span", "in the recorded span", "recorded span (slowest rank)")


def step_words(inputs: Inputs) -> StepWords:
    """The phrases for a run: of steps if there are any, else of what each file recorded."""
    return _STEP if steps_of(inputs) else _SPAN


def most_of(frame: pl.DataFrame, rank: int, name: str, *columns: str) -> str | None:
    """The name that has most of the sum of some columns on a rank; None without a name.

    Args:
        frame: rank, the column ``name``, and the summed ones.
    """
    own = frame.filter(pl.col("rank") == rank).drop_nulls(name)
    sums = own.group_by(name).agg(pl.sum_horizontal(columns).sum().alias("sum"))
    ordered = sums.sort("sum", name, descending=[True, False])[name]
    return None if ordered.is_empty() else str(ordered[0])


def average_step(inputs: Inputs) -> tuple[int | None, StepWords]:
    """The mean step, ns, and its phrases: what totals of files are a part of. Without steps, the recorded span."""
    return (mean_step_ns(inputs), MEAN_STEP) if steps_of(inputs) else (step_ns(inputs), _SPAN)


def on_device(inputs: Inputs) -> bool:
    """Whether the run has device events: without them nothing is launched, and compute is operators."""
    frame = inputs.results.get("device_time")
    kernels = inputs.results.get("kernels")
    if kernels is not None:
        return not kernels.is_empty()
    return frame is not None and bool((frame["compute_ns"] + frame["communication_ns"]).sum())


def step_counts(inputs: Inputs) -> dict[int, int]:
    """The number of steps by rank, to divide a file's totals by."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    return {int(rank): int(count) for rank, count in frame.group_by("rank").len().sort("rank").iter_rows()}


def per_step(by_rank: pl.DataFrame, column: str, inputs: Inputs) -> dict[int, int]:
    """A column's total per step, by rank, the largest first.

    Args:
        by_rank: ``rank`` and the column, totals of files; null counts as 0.
    """
    counts = step_counts(inputs)
    summed = by_rank.group_by("rank").agg(pl.col(column).sum()).drop_nulls()
    found = {int(rank): round(value / counts.get(int(rank), 1)) for rank, value in summed.iter_rows()}
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


@dataclass(frozen=True)
class Worst:
    """The rank with the largest saving.

    Attributes:
        rank: its number.
        saving_ns: the saving, ns per step.
        severity: of that.
        ranks: all ranks whose saving is large enough for a finding.
    """

    rank: int
    saving_ns: int
    severity: Severity
    ranks: tuple[int, ...]


def worst_rank(savings: Mapping[int, int], step: int | None) -> Worst | None:
    """The rank with the largest saving; None if no saving is large enough for a finding.

    Args:
        savings: ns per step, by rank; of equal ones, the first counts.
        step: the step's length, ns.
    """
    rank = max(savings, key=lambda each: savings[each], default=None)
    severity = None if rank is None else severity_of(savings[rank], step)
    if rank is None or severity is None:
        return None
    return Worst(rank, savings[rank], severity, relevant_ranks(savings, step))


def relevant_ranks(by_rank: Mapping[int, int], step: int | None) -> tuple[int, ...]:
    """The ranks whose saving is large enough for a finding."""
    return tuple(sorted(rank for rank, value in by_rank.items() if severity_of(value, step) is not None))


def memory_severity(share: float) -> Severity | None:
    """The severity of a share of the device's memory in use; None if there is enough room."""
    if share < MEMORY_INFO:
        return None
    return "warning" if share >= MEMORY_WARNING else "info"


def recording_overhead(inputs: Inputs) -> dict[int, int]:
    """By how much recorded windows exceed the median step without recording, by rank, ns."""
    frame = inputs.results.get("step_time")
    plain = {each.rank: each.step_median_ns.get("wait") for each in inputs.capture}
    if frame is None or frame.is_empty():
        return {}
    medians = frame.group_by("rank").agg(pl.col("window_ns").median()).iter_rows()
    return {int(rank): max(0, round(window - usual)) for rank, window in medians if (usual := plain.get(rank))}


def profiler_overhead(inputs: Inputs) -> dict[int, int]:
    """What recording adds to the median step, by rank, ns; only ranks for which capture measured it."""
    medians = {each.rank: each.step_median_ns for each in inputs.capture if each.rank is not None}
    return {
        rank: max(0, found["active"] - found["wait"])
        for rank, found in medians.items()
        if found.get("active") and found.get("wait")
    }

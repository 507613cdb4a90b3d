"""Some ranks have more to compute than others.

Fires if a rank's compute exceeds the mean over ranks by enough in at least three of four steps, and its lower
quartile exceeds the mean of the others' upper quartile: longer sequences, a larger share of a model. Of two ranks at
least four steps are needed. The saving is the largest less the mean, median over steps: work that moves to other ranks
is still done. If pipeline stages differ, it is the distance from an even split. Ranks with incomplete files take no
part, nor do ranks without device events if others have some. It does not fire if the rank's local time is not
significantly longer (analysis `stragglers`): the rank then makes up for its compute elsewhere. This holds without
pipeline stages, as `stragglers` compares ranks within a stage. On the CPU, where compute includes time without a core,
it is an info at most, only from 10 % on, and silent if there are too few steps to tell.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.diagnosis.advice import job_of
from rankscope.diagnosis.anchors import imbalance_anchor
from rankscope.diagnosis.effects import MORE_WORK, SLOW_DEVICE
from rankscope.diagnosis.step_costs import on_device, severity_of, step_ns, step_words, steps_of
from rankscope.primitives.job_kind import STAGES, JobKind
from rankscope.primitives.statistics import Significance
from rankscope.primitives.stragglers.suspects import TOO_FEW
from rankscope.results import Evidence, Finding, Inputs, Rule, of_judged_ranks

_LASTING = 0.75
"""Of the steps: the same rank computes longest in at least this share."""
CPU_EXCESS = 0.1
"""Of the mean. Two clean Gloo jobs of two ranks on one host differed by 3 % in four steps."""
ENOUGH = 3
"""Steps: in fewer, a rank that has most may just have its turn; of two ranks one always has (`TOO_FEW`)."""


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding."""
    step, frame = step_ns(inputs), inputs.results.get("step_time")
    unit = step_words(inputs)
    frame = None if frame is None else of_judged_ranks(frame, inputs.traces)
    kernels = inputs.results.get("kernels")
    if frame is not None and kernels is not None and not kernels.is_empty():
        # Elsewhere compute is operators, whose time is no kernel's.
        frame = frame.filter(pl.col("rank").is_in(kernels["rank"].unique().implode()))
    if frame is None or step is None or frame["rank"].n_unique() < 2:
        return []
    steps = (
        frame.group_by("window", "step")
        .agg(
            pl.col("compute_ns").max().alias("most"),
            pl.col("compute_ns").mean().alias("mean"),
            pl.col("rank").sort_by("compute_ns", "rank", descending=[True, False]).first(),
            pl.len().alias("ranks"),
        )
        .filter(pl.col("ranks") == frame["rank"].n_unique())
    )
    if steps.height < (TOO_FEW if frame["rank"].n_unique() == 2 else ENOUGH):
        return []
    rank = steps["rank"].mode().sort()[0]
    own = steps.filter(pl.col("rank") == rank)
    if own.height < _LASTING * steps.height or not _apart(frame, rank):
        return []
    most, mean = (float(np.median(own[name].to_numpy())) for name in ("most", "mean"))
    saving = round(most - mean)
    severity = severity_of(saving, step)
    if severity is None:
        return []
    if _makes_up_for_it(inputs, int(rank)) or (not on_device(inputs) and saving < CPU_EXCESS * mean):
        return []
    return [
        Finding(
            rule.name,
            severity if on_device(inputs) else "info",
            f"Rank {rank} computes {100 * (most - mean) / mean if mean else 0:.0f} % longer than the mean of the ranks",
            ranks=(int(rank),),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"its compute, {unit.per}", round(most), "ns"),
                Evidence("mean over ranks", round(mean), "ns"),
                Evidence("steps in which it computes longest", own.height, "count"),
                Evidence("steps", steps.height, "count"),
            ),
            saving_ns=saving,
            anchor=imbalance_anchor(
                inputs, int(rank), f"Rank {rank} spends more time in events of this name than the other ranks"
            ),
            advice=_advice(job_of(inputs)),
        )
    ]


def _apart(frame: pl.DataFrame, rank: int) -> bool:
    """Whether a rank's compute exceeds that of the others by more than both vary from step to step."""
    is_own = pl.col("rank") == rank
    low = frame.filter(is_own)["compute_ns"].quantile(0.25)
    high = (
        frame.filter(~is_own).group_by("window", "step").agg(pl.col("compute_ns").mean())["compute_ns"].quantile(0.75)
    )
    return low is not None and high is not None and low > high


def _makes_up_for_it(inputs: Inputs, rank: int) -> bool:
    """Whether the rank's local time was compared, and is not significantly longer than that of the others."""
    frame = inputs.results.get("stragglers")
    judged = set() if frame is None else set(frame.filter(pl.col("rank") == rank)["significance"].drop_nulls())
    if not on_device(inputs):
        return bool(judged - {Significance.SIGNIFICANT.value})
    return STAGES not in job_of(inputs).parallel and Significance.NOT_SIGNIFICANT.value in judged


def _advice(job: JobKind) -> str:
    """What to balance in this kind of job."""
    ways = [
        "requests spread over the ranks by their number of tokens"
        if job.infers
        else "batches bucketed by length or packed to one number of tokens"
    ]
    if STAGES in job.parallel or not job.parallel:
        ways.append("layers spread over pipeline stages by their time")
    if job.experts:
        ways.append("experts placed by their load" + ("" if job.infers else ", with a balancing loss or a capacity"))
    if job.embeddings:
        ways.append("embedding tables placed by their load")
    return f"Balance the work across ranks: {', '.join(ways)}."


rule = Rule(
    "imbalance",
    __doc__,
    ("step_time", "kernels", "stragglers", "evidence_events"),
    find,
    parts=("compute",),
    symptom_of=(SLOW_DEVICE, MORE_WORK),
)

"""Some ranks have more to compute than others.

Fires if a rank's compute exceeds the mean over ranks by enough in at least three of four steps, and its lower
quartile exceeds the mean of the others' upper quartile: longer sequences, a larger share of a model. Of two ranks at
least four steps are needed. The saving is the largest less the mean, median over steps: work that moves to other ranks
is still done. If pipeline stages differ, it is the distance from an even split. Ranks with incomplete files take no
part, nor do ranks without device events if others have some. It does not fire if the rank's local time is not
significantly longer (analysis `stragglers`): the rank then makes up for its compute elsewhere, or there are too few
steps to tell. This holds without pipeline stages, as `stragglers` compares ranks within a stage. It does not fire on
the CPU, where operators of equal work take longer on a shared core and while collectives are passed on: there
`stragglers` compares the operators themselves.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import imbalance_anchor
from rankscope.answers.diagnosis.effects import MORE_WORK, SLOW_DEVICE
from rankscope.answers.diagnosis.step_costs import on_device, severity_of, step_ns, step_words, steps_of
from rankscope.primitives.imbalance import computes_longest
from rankscope.primitives.job_kind import STAGES, JobKind
from rankscope.primitives.statistics import Significance
from rankscope.results import Evidence, Finding, Inputs, Rule, of_judged_ranks


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding."""
    step, frame = step_ns(inputs), inputs.results.get("step_time")
    unit = step_words(inputs)
    if frame is None or step is None or not on_device(inputs):
        return []
    frame = of_judged_ranks(frame, inputs.traces)
    kernels = inputs.results.get("kernels")
    if kernels is not None and not kernels.is_empty():
        # Elsewhere compute is operators, whose time is no kernel's.
        frame = frame.filter(pl.col("rank").is_in(kernels["rank"].unique().implode()))
    longest = computes_longest(frame.select("window", "step", pl.col("rank").alias("who"), "compute_ns"))
    if longest is None:
        return []
    rank, most, mean = int(str(longest.who)), longest.most_ns, longest.mean_ns
    saving = round(most - mean)
    severity = severity_of(saving, step)
    if severity is None or _makes_up_for_it(inputs, rank):
        return []
    return [
        Finding(
            rule.name,
            severity,
            f"Rank {rank} computes {100 * (most - mean) / mean if mean else 0:.0f} % longer than the mean of the ranks",
            ranks=(rank,),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"its compute, {unit.per}", round(most), "ns"),
                Evidence("mean over ranks", round(mean), "ns"),
                Evidence("steps in which it computes longest", longest.steps, "count"),
                Evidence("steps", longest.compared, "count"),
            ),
            saving_ns=saving,
            anchor=imbalance_anchor(
                inputs, rank, f"Rank {rank} spends more time in events of this name than the other ranks"
            ),
            advice=_advice(job_of(inputs)),
        )
    ]


def _makes_up_for_it(inputs: Inputs, rank: int) -> bool:
    """Whether the rank's local time was compared with its peers', and not found to be longer."""
    frame = inputs.results.get("stragglers")
    judged = set() if frame is None else set(frame.filter(pl.col("rank") == rank)["significance"].drop_nulls())
    return STAGES not in job_of(inputs).parallel and bool(judged - {Significance.SIGNIFICANT.value})


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

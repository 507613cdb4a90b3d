"""Exposed communication: compute does not overlap with it.

Fires on a step's exposed transfer (`distributed`). What is exposed in all, and the waiting in it, are the means over
ranks and usual steps that `overview` has. Waiting for later ranks is covered by `stragglers`; overlap cannot
shorten it. The saving is what could overlap at most: the exposed transfer, but no more than the compute of the step,
median over steps, on the rank with the least. More overlap on the other ranks alone does not shorten a step. If fewer
than half of the steps communicate (gradients that are accumulated over several), the figures are means over all steps,
and shares are of the mean step.
If wait and transfer cannot be separated, although all ranks are recorded (Gloo's overlapping ranges, collectives
without a match), all of it counts: the rank that is exposed least waits least. If ranks are missing there is no saving:
all that is recorded may be waiting for them. The evidence names the collective with the most transfer time, and the
title if it has half of it. On the CPU, compute and communication share the cores: the finding is then never more than
an info.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from rankscope.answers.diagnosis.advice import any_of, half_precision_of, job_of
from rankscope.answers.diagnosis.anchors import exposed_anchor
from rankscope.answers.diagnosis.effects import BUCKETS, SLOW_LINKS, SLOW_TRANSFERS, SMALL_SYNCS, WAITING
from rankscope.answers.diagnosis.recurring_costs import in_some_steps
from rankscope.answers.diagnosis.step_costs import (
    MEAN_STEP,
    PLACE,
    StepWords,
    mean_of,
    mean_step_ns,
    on_device,
    severity_of,
    shown_size,
    step_ns,
    step_words,
    steps_of,
    unrecorded_ranks,
    usual,
)
from rankscope.primitives.job_kind import DDP, FSDP, STAGES, TENSOR, JobKind
from rankscope.primitives.steps import averaged_steps
from rankscope.results import Evidence, Finding, Inputs, Rule, Severity
from rankscope.rundir.plurals import counted

_REASON = "Nothing computes during this collective, or during a part of it"
_WORST_SHARE = 0.05
"""Of a step: the finding names ranks that could save at least this share."""
_OF_ACTIVATIONS = ("all_to_all", "send", "recv", "send_recv", "dispatch", "combine")
"""Collectives of tokens, embeddings and activations."""
_MOST = 0.5
"""Of the transfer time: a collective with so much of it is in the title."""
MEAN_OF_RANKS = "mean step time (all ranks)"
_KNOWN = 0.5
"""Of what the saving is taken from: if less is known to be transfer, the finding is an info."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame, times = step_ns(inputs), inputs.results.get("distributed"), inputs.results.get("step_time")
    if step is None or frame is None or times is None or frame.is_empty():
        return []
    # Waiting is never counted, neither where it is known nor where it is within the unknown of the least exposed rank.
    open_ns = pl.col("exposed_transfer_ns") + pl.col("exposed_unmatched_ns")
    rows = frame.join(times.select(*PLACE, "compute_ns"), on=PLACE, nulls_equal=True).with_columns(
        open_ns.alias("open"), pl.min_horizontal(open_ns, "compute_ns").alias("saving")
    )
    missing = unrecorded_ranks(inputs)
    averages = _averages(rows, inputs)
    if missing:
        return _not_known(averages[-1], averaged_steps(rows), missing, inputs)
    average = max(averages, key=lambda each: each.saving_ns / each.step_ns)
    least, saving, unit = average.least, average.saving_ns, average.unit
    severity = severity_of(saving, average.step_ns)
    if severity is None:
        return []
    # On the CPU compute and communication share the cores: hiding one behind the other gains little.
    separated = least["exposed_transfer_ns"] >= _KNOWN * least["open"]
    certain = on_device(inputs) and separated
    lowest = average.lowest
    of_lowest = [Evidence(f"without waiting, rank {lowest['rank']} (the lowest)", round(lowest["open"]), "ns")]
    share = unit.share(lowest["open"], average.step_ns)
    title = f"{share} is exposed communication, not counting waits for other ranks"
    if not separated:
        title = f"At most {share} is exposed communication other than waits for other ranks"
    heaviest = _heaviest(inputs)
    if heaviest is not None and heaviest.share >= _MOST and heaviest.kind != "unknown":
        title += f", most of it {heaviest.named}"
    if saving < round(lowest["open"]):
        of_lowest.append(Evidence("compute that could run at the same time", saving, "ns"))
    worst = pl.col("saving") >= _WORST_SHARE * average.step_ns
    ranks = tuple(average.costs.filter(worst)["rank"].to_list())
    found = _finding(
        severity if certain else "info",
        title,
        ranks,
        _evidence(average, averaged_steps(rows), of_lowest, heaviest, inputs),
        saving,
        inputs,
        _advice(job_of(inputs), heaviest, half_precision_of(inputs)),
    )
    shown = least["rank"] if least["rank"] in ranks else min(ranks, default=least["rank"])
    return [replace(found, anchor=exposed_anchor(inputs, shown, _REASON))]


@dataclass(frozen=True)
class _Heaviest:
    """The collectives that take most of the transfer time: of one kind, size, type and number of ranks."""

    kind: str
    bytes: int | None
    ranks: int | None
    dtype: str | None
    share: float

    @property
    def named(self) -> str:
        """What they are, in words."""
        named = "collectives of an unknown kind" if self.kind == "unknown" else self.kind
        named += f" of {shown_size(self.bytes)}" if self.bytes else ""
        return named + (f" over {self.ranks} ranks" if self.ranks else "")


@dataclass(frozen=True)
class _Average:
    """What the ranks' steps have on average: `costs` by rank, of a step of this length."""

    costs: pl.DataFrame
    step_ns: int
    unit: StepWords

    @property
    def least(self) -> dict[str, Any]:
        """The row of the rank that can save the least."""
        return self.costs.sort("saving", "rank").row(0, named=True)

    @property
    def lowest(self) -> dict[str, Any]:
        """The row of the rank that is exposed least; another may have less compute to hide it behind."""
        return self.costs.sort("open", "rank").row(0, named=True)

    @property
    def saving_ns(self) -> int:
        """What that rank can save."""
        return round(float(self.least["saving"]))


def _averages(rows: pl.DataFrame, inputs: Inputs) -> list[_Average]:
    """The median step; and if fewer than half of them communicate, but at least two, the mean step."""
    names = ("exposed_communication_ns", "exposed_synchronizing_ns", "exposed_transfer_ns", "exposed_unmatched_ns")
    columns = (*names, "open", "saving")
    found = [_Average(usual(rows, *columns), step_ns(inputs) or 1, step_words(inputs))]
    some = rows.group_by("rank").agg(
        (pl.col("exposed_communication_ns") > 0).sum().alias("with"), pl.len().alias("steps")
    )
    seldom = in_some_steps(pl.col("with"), pl.col("steps"))
    mean = mean_step_ns(inputs)
    if mean is not None and some.select(seldom.all()).item():
        means = rows.group_by("rank").agg(pl.col(*columns).mean()).drop_nulls().sort("rank")
        found.append(_Average(means, mean, MEAN_STEP))
    return found


def _not_known(average: _Average, rows: pl.DataFrame, missing: int, inputs: Inputs) -> list[Finding]:
    """What is exposed, where waiting for a rank without a trace looks like transfer.

    Args:
        rows: of the steps that means are of.
    """
    costs, step = average.costs, average.step_ns
    if severity_of(round(mean_of(costs["open"])), step) is None:
        return []
    unit = MEAN_STEP if steps_of(inputs) else average.unit
    mean = mean_of(rows["window_ns"])
    share = unit.share(mean_of(rows["exposed_communication_ns"]), mean)
    title = f"{share} is exposed communication; how much of it is waiting for other ranks is unknown"
    lacking = Evidence("ranks without a complete trace, at least", counted(missing, "rank"))
    more = [lacking, Evidence(MEAN_OF_RANKS, round(mean), "ns")]
    evidence = _evidence(average, rows, more, _heaviest(inputs), inputs)
    together = "Record all ranks at the same steps and put their traces into one directory"
    if inputs.left_out is not None and missing <= len(inputs.left_out.ranks):
        together = inputs.left_out.record_all.rstrip(".")
    advice = f"{together}: the rank that waits least then shows the transfer. Only that could overlap with compute."
    ranks = tuple(costs["rank"].to_list())
    most = costs.sort("exposed_communication_ns", "rank", descending=[True, False])["rank"][0]
    found = _finding("info", title, ranks, evidence, None, inputs, advice)
    return [replace(found, anchor=exposed_anchor(inputs, most, _REASON))]


def _evidence(
    average: _Average, rows: pl.DataFrame, more: list[Evidence], heaviest: _Heaviest | None, inputs: Inputs
) -> list[Evidence]:
    """What is exposed in all, as in `overview`, and its parts.

    Args:
        rows: of the steps that means are of.
    """
    unit = average.unit
    per = "mean per rank and step" if steps_of(inputs) else f"per rank and {unit.noun}"
    evidence = [Evidence(f"exposed communication, {per}", round(mean_of(rows["exposed_communication_ns"])), "ns")]
    parts = (
        ("exposed_synchronizing_ns", "of which waiting for later ranks"),
        ("exposed_unmatched_ns", "of which waiting and transfer cannot be separated"),
    )
    evidence += [Evidence(text, round(value), "ns") for name, text in parts if (value := mean_of(rows[name]))]
    evidence += [*more, Evidence(unit.length, average.step_ns, "ns")]
    if heaviest is None:
        return evidence
    most = f"{heaviest.named}: {100 * heaviest.share:.0f} % of it"
    return [*evidence, Evidence("collective with the most time", most)]


def _finding(
    severity: Severity,
    title: str,
    ranks: tuple[int, ...],
    evidence: list[Evidence],
    saving: int | None,
    inputs: Inputs,
    advice: str,
) -> Finding:
    return Finding(
        rule.name,
        severity,
        title,
        ranks=ranks,
        steps=steps_of(inputs),
        evidence=tuple(evidence),
        saving_ns=saving,
        advice=advice,
    )


def _heaviest(inputs: Inputs) -> _Heaviest | None:
    """The collectives of steps that take most time."""
    if "collectives" not in inputs.results:
        return None
    keys, time = ("collective", "bytes", "group_size", "dtype"), pl.coalesce("transfer_ns", "duration_ns")
    sums = [
        block.filter(pl.col("step").is_not_null()).group_by(*keys).agg(time.sum().alias("t"))
        for block in inputs.blocks("collectives", "step", *keys, "transfer_ns", "duration_ns")
    ]
    by = pl.concat(sums).group_by(*keys).agg(pl.col("t").sum())
    by = by.sort("t", *keys, descending=[True, False, False, False, False], nulls_last=True)
    if by.is_empty():
        return None
    kind, size, ranks, dtype, longest = by.row(0)
    return _Heaviest(kind, size, ranks, dtype, longest / max(int(by["t"].sum()), 1))


def _advice(job: JobKind, heaviest: _Heaviest | None = None, half: str | None = None) -> str:
    """Ways to overlap communication, or to send less, in this kind of job.

    Args:
        heaviest: what takes most of the time.
        half: the 16-bit type that the devices have; None if that is not known.
    """
    ways = []
    kind = None if heaviest is None else heaviest.kind
    reduces = kind in ("reduce_scatter", "all_reduce")
    # Of a job that exchanges embeddings too, the gradients may be the smaller part.
    of_ddp = job.trains_with(DDP) and (reduces or kind is None)
    if of_ddp:
        ways.append("start DDP's all-reduces earlier: smaller buckets (bucket_cap_mb), static_graph")
    if job.trains_with(FSDP):
        ways.append(
            # Prefetching is of parameters.
            "reduce FSDP's gradients once for several micro-batches (no_sync, set_requires_gradient_sync)"
            if reduces
            else "prefetch FSDP's next module (set_modules_to_forward_prefetch, set_modules_to_backward_prefetch)"
        )
    if TENSOR in job.parallel:
        ways.append(
            "all-reduces made for small messages (one-shot, or fused with the norm), or fewer tensor-parallel ranks"
            if job.infers
            else "overlap tensor parallelism's collectives with its products (async tensor parallelism)"
        )
    if job.exchanges_experts:
        ways.append("overlap dispatch and combine of one half of the batch with the compute of the other half")
    if job.embeddings:
        ways.append(
            "exchange the next batch's embeddings while this batch's dense layers run (a pipelined training loop)"
        )
    if job.infers:
        return any_of([*ways, "more requests per batch; if the batch is large enough, alternate between two halves"])
    if of_ddp:
        dtype = (heaviest.dtype if heaviest is not None else None) or ""
        short = "an fp16" if half == "float16" else "a bf16"
        hook = {"float": f"{short} compression hook, ", "": f"{short} compression hook for gradients in float32, "}
        ways.append(f"send less: {hook.get(dtype.lower().removesuffix('32'), '')}gradient accumulation under no_sync")
    if not ways:
        # Nothing shows what communicates: what helps any job.
        ways.append("start each transfer as soon as its data is ready, and wait for it only when its result is needed")
    if not _grows_with_batch(job, kind):
        ways.append("larger batches per rank")
    return any_of(ways)


def _grows_with_batch(job: JobKind, kind: str | None) -> bool:
    """Whether what is sent grows with the batch, as activations, tokens and embeddings do, and gradients do not."""
    return job.exchanges_activations or STAGES in job.parallel or kind in _OF_ACTIVATIONS


rule = Rule(
    "exposed_communication",
    __doc__,
    ("step_time", "distributed", "collectives", "kernels", "evidence_events"),
    find,
    parts=("communication",),
    symptom_of=(WAITING, SLOW_TRANSFERS, SLOW_LINKS, BUCKETS, SMALL_SYNCS),
)

"""The host allocates and frees device memory in the driver during steps.

Fires if the device is idle long enough in gaps in which the host is in such calls (`idle --by step`: `cudaMalloc`,
`cudaFree`, `hipMalloc`, `cudaHostAlloc`, …), or if a rank calls free in at least every second step, together with
allocations: the allocator has reached the limit, or sizes change, so it returns its cache and allocates again, and each
such free waits for the device. The saving is that idle time, median over steps, on the rank with the most. If only
some steps have it, these are named, and no saving is stated: it is not known how often they come. The first allocations
of a job do not count: those of the first recorded step if nothing is freed, and in a file without steps those with
less than one free for ten kernels.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import MEMORY_CALLS
from rankscope.answers.diagnosis.step_costs import (
    WARNING_SHARE,
    named_steps,
    number_of_steps,
    on_worst_rank,
    relevant_ranks,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    usual,
)
from rankscope.results import Evidence, Finding, Inputs, Rule, Severity

_ADVICE = (
    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_HIP_ALLOC_CONF on ROCm), unset "
    "PYTORCH_NO_CUDA_MEMORY_CACHING (PYTORCH_NO_HIP_MEMORY_CACHING), take torch.cuda.empty_cache() out of the loop, "
    "let sizes change less (pad or bucket the batches), and use less memory "
)
_SERVING, _TRAINING = "(fewer requests at once).", "(a smaller batch, activation checkpointing)."
_A_FEW = 10
"""Kernels for each free: the first allocations of a file without steps free less often."""
_PINNED = " Pin host memory once: DataLoader(pin_memory=True), or buffers that are used again."


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("idle_by_step")
    if step is None or frame is None:
        return []
    frame = frame.filter(
        pl.col("on_device") & (pl.col("step").is_not_null() | (_A_FEW * pl.col("frees") > pl.col("pieces")))
    )
    costs = usual(frame, "allocator_ns").sort("allocator_ns", "rank", descending=[True, False])
    if costs.is_empty():
        return []
    unit, worst, saving = step_words(inputs), int(costs["rank"][0]), round(costs["allocator_ns"][0])
    severity = severity_of(saving, step)
    if severity != "warning":
        single = _in_some_steps(frame, step, inputs)
        if single or severity is None:
            return single or _without_cost(frame, inputs)
    ranks = relevant_ranks(dict(costs.iter_rows()), step)
    title = (
        "Allocating and freeing device memory leaves the device idle for "
        f"{unit.share(saving, step)}{on_worst_rank(inputs, worst, ranks)}"
    )
    evidence = [
        Evidence(f"device idle in driver calls for memory ({unit.per}, worst rank)", saving, "ns"),
        *_calls(frame.filter(pl.col("rank") == worst), worst),
        Evidence(unit.length, step, "ns"),
    ]
    return [_at(_finding(severity, title, ranks, steps_of(inputs), evidence, saving, inputs), worst, inputs)]


def _in_some_steps(frame: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    """Steps that wait for the allocator where most do not."""
    first = (pl.col("step") == pl.col("step").min().over("rank")) & (pl.col("frees") == 0)
    slow = frame.filter(pl.col("step").is_not_null() & ~first & (pl.col("allocator_ns") >= WARNING_SHARE * step))
    if slow.is_empty():
        return []
    worst = slow.sort("allocator_ns", "rank", descending=[True, False]).row(0, named=True)
    ranks = tuple(slow["rank"].unique().sort().to_list())
    own = slow.filter(pl.col("rank") == worst["rank"])
    steps = tuple(slow["step"].unique().sort().to_list())
    title = (
        f"Allocating and freeing device memory leaves the device idle in {named_steps(steps)}"
        f"{on_worst_rank(inputs, worst['rank'], ranks)}"
    )
    evidence = [
        Evidence(f"device idle in driver calls for memory, step {worst['step']}", worst["allocator_ns"], "ns"),
        Evidence("steps that lose 5 % of a step or more", f"{own.height} of {number_of_steps(inputs)}"),
        *_calls(own, worst["rank"]),
        Evidence(step_words(inputs).length, step, "ns"),
    ]
    return [_at(_finding("warning", title, ranks, steps, evidence, None, inputs), worst["rank"], inputs)]


def _without_cost(frame: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """Ranks that free and allocate in every second step or more often, with the device at work meanwhile."""
    totals = (
        frame.filter(pl.col("step").is_not_null())
        .group_by("rank")
        .agg(pl.col("allocations", "frees", "pinned").sum(), pl.len().alias("steps"))
    )
    often = totals.filter(
        (pl.col("allocations") > 0) & (pl.col("frees") > 0) & (pl.col("frees") >= pl.col("steps") / 2)
    )
    if often.is_empty():
        return []
    worst = often.sort("frees", "rank", descending=[True, False])["rank"][0]
    title = "The allocator returns memory to the driver and allocates it again during steps"
    ranks = tuple(often["rank"].sort().to_list())
    calls = _calls(frame.filter(pl.col("rank") == worst), worst)
    return [_at(_finding("info", title, ranks, steps_of(inputs), calls, None, inputs), worst, inputs)]


def _calls(own: pl.DataFrame, rank: int) -> list[Evidence]:
    """How often the driver was called, in some steps of a rank."""
    named = (("frees", "free"), ("allocations", "malloc"), ("pinned", "calls for pinned host memory"))
    counts = [(name, int(own[column].sum())) for column, name in named]
    return [Evidence(f"the driver's {name}, rank {rank}", count, "count") for name, count in counts if count]


def _at(finding: Finding, rank: int, inputs: Inputs) -> Finding:
    """The finding with the call of a rank that shows it."""
    return replace(finding, anchor=event_anchor(inputs, "allocator_call", rank, steps=finding.steps))


def _finding(
    severity: Severity,
    title: str,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
    evidence: list[Evidence],
    saving: int | None,
    inputs: Inputs,
) -> Finding:
    pinned = any("pinned" in each.name for each in evidence)
    return Finding(
        rule.name,
        severity,
        title,
        ranks=ranks,
        steps=steps,
        evidence=tuple(evidence),
        saving_ns=saving,
        advice=_ADVICE + (_SERVING if job_of(inputs).infers else _TRAINING) + (_PINNED if pinned else ""),
    )


rule = Rule(
    "memory_retries",
    __doc__,
    ("step_time", "idle_by_step", "evidence_events"),
    find,
    parts=("host",),
    symptom_of=(MEMORY_CALLS,),
)

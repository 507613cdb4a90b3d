"""Matrix products and convolutions in 32 bits where 16 may be enough.

Fires if operators that tensor cores support compute in float32 or float64 (`matrix_work`, so with `record_shapes`).
It is never more than an info: reduced precision is a choice. The saving is their device time less what it would be in
bfloat16 (float16 if the device has no bfloat16), by the ratio of the device's peaks; without tensor cores before,
with them after. Kernels whose names do not show where they compute add nothing to it. Memory-bound kernels gain half
at most. On the CPU the gain depends on its instructions (AMX, AVX-512), which traces do not record: the rule then fires
if such work is most of a step, and names no saving.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import autocast, half_precision_of, job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import average_step, per_step, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule

_WIDE = ("float32", "float64")
_MOST = 0.5
"""Of a step on the CPU, where the gain is not known: less is not worth a finding."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("matrix_work")
    if frame is None:
        return []
    wide = frame.filter(pl.col("number").is_in(_WIDE))
    known = wide.filter(pl.col("narrow_saving_ns").is_not_null())
    if known.is_empty():
        return _of_cpu(wide.filter(pl.col("device_ns").is_null()), inputs)
    cost = cost_of(known, "narrow_saving_ns", ("compute_ns",), inputs)
    if cost is None:
        return []
    worst, number = cost.worst, half_precision_of(inputs)
    own = cost.rows.filter(pl.col("rank") == worst.rank)
    return [
        Finding(
            rule.name,
            "info",
            "Matrix products and convolutions compute in 32 bits or more",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence("such operators", int(own["calls"].sum()), "count"),
                Evidence("time in their kernels, entire file", int(own["device_ns"].sum()), "ns"),
                Evidence("of which on tensor cores", int(own["tensor_ns"].sum()), "ns"),
                Evidence("of which in kernels whose names do not show it", int(own["unknown_ns"].sum()), "ns"),
                cost.length,
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "wide_type", worst.rank),
            advice=(
                f"Load the model in {number or 'bfloat16 (float16 on devices without it)'}."
                if job_of(inputs).infers
                else f"Train {autocast(number)}."
            ),
        )
    ]


def _of_cpu(wide: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    spent = per_step(wide, "host_ns", inputs)
    worst = next(iter(spent), None)
    step, unit = average_step(inputs)
    if worst is None or step is None or spent[worst] < _MOST * step:
        return []
    return [
        Finding(
            rule.name,
            "info",
            f"Most of {unit.one} is matrix products and convolutions in 32 bits or more, on the CPU",
            ranks=tuple(sorted(rank for rank, value in spent.items() if value >= _MOST * step)),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"time in them ({unit.per}, worst rank)", spent[worst], "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            anchor=event_anchor(inputs, "wide_type", worst),
            advice="On a CPU with bfloat16 instructions (avx512_bf16, amx_bf16) try torch.autocast('cpu').",
        )
    ]


rule = Rule("precision", __doc__, ("step_time", "matrix_work", "evidence_events"), find, parts=("compute",))

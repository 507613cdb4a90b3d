"""Matrix products and convolutions that could use tensor cores but do not.

Fires if operators that tensor cores support ran products or convolutions on the ordinary cores (`matrix_work`), on a
device whose peaks are known. Kernels whose names do not show where they compute do not count either way. The
saving is that time less what it would be by the ratio of the device's peaks (TF32 for 32-bit numbers, if the device has
it), a part of the mean step and at most its compute. Types that only a single step of several uses are left out.
Memory-bound kernels gain less.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import autocast, half_precision_of, job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("matrix_work")
    if frame is None:
        return []
    known = frame.filter(pl.col("saving_ns").is_not_null() & (pl.col("number") != "float64"))
    cost = cost_of(known, "saving_ns", ("compute_ns",), inputs)
    if cost is None:
        return []
    worst, number = cost.worst, half_precision_of(inputs)
    own = cost.rows.filter(pl.col("rank") == worst.rank).sort("saving_ns", descending=True).row(0, named=True)
    wide = own["number"] == "float32"
    return [
        Finding(
            rule.name,
            worst.severity,
            f"{own['number']} work that tensor cores could do runs without them",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence("operators that tensor cores can run", own["calls"], "count"),
                Evidence("time in their kernels, entire file", own["device_ns"], "ns"),
                Evidence("of which on tensor cores", own["tensor_ns"], "ns"),
                Evidence("products on ordinary cores, by their names", own["off_ns"], "ns"),
                Evidence("in kernels whose names do not show it", own["unknown_ns"], "ns"),
                cost.length,
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "ordinary_cores", worst.rank, detail=own["number"]),
            advice=(
                "Let 32-bit products use TF32: torch.set_float32_matmul_precision('high') and "
                "torch.backends.cudnn.allow_tf32 = True; or "
                + (
                    f"load the model in {number or '16 bits'}."
                    if job_of(inputs).infers
                    else f"train {autocast(number)}."
                )
                if wide
                else "Make the sizes multiples of 8 (16-bit numbers) or 16 (8-bit): batch, hidden size, vocabulary."
            ),
        )
    ]


rule = Rule("tensor_cores", __doc__, ("step_time", "matrix_work", "evidence_events"), find, parts=("compute",))

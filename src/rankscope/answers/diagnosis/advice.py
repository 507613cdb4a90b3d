"""What rules choose their advice by: the kind of the job.

In: the result of `job_kind`. Out: a `JobKind`; an unknown one where the analysis is missing. Advice names only what the
job may have: advice on serving does not mention optimizers, advice on FSDP does not mention DDP's buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.primitives.device_peaks import half_precision
from rankscope.primitives.job_kind import JobKind
from rankscope.results import Inputs


def job_of(inputs: Inputs) -> JobKind:
    """The kind of the job that rules look at."""
    frame = inputs.results.get("job_kind")
    if frame is None or frame.is_empty():
        return JobKind()
    row = frame.row(0, named=True)
    parallel = frozenset((row["parallel"] or "").split(", ")) - {""}
    return JobKind(row["mode"], row["wrapper"], parallel, row["experts"], row["embeddings"])


def half_precision_of(inputs: Inputs) -> str | None:
    """The 16-bit type to advise: one that all of the job's devices have; None if that is not known."""
    return half_precision(device for info in inputs.traces for device in info.devices)


def autocast(number: str | None) -> str:
    """How to train in 16 bits on devices that have a type."""
    ways = {"bfloat16": "with bfloat16", "float16": "with float16 and a GradScaler (these devices have no bfloat16)"}
    both = "with bfloat16 (float16 and a GradScaler on devices without bfloat16)"
    return f"under torch.autocast {ways.get(number or '', both)}"


def any_of(ways: Sequence[str]) -> str:
    """Several ways as one sentence: ``A; b; or c.``"""
    *others, last = ways
    text = f"{'; '.join(others)}; or {last}" if others else last
    return f"{text[:1].upper()}{text[1:]}."

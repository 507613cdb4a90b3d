"""From one step on, all ranks take longer.

Fires if a recorded window divides into two parts of at least four steps, so that every later step of the job is longer
than every earlier one, by at least half of the difference of the medians, and these differ by 10 % or more. The same
part of a step (compute, communication, data loading …) has to make up at least half of the difference on every rank: if
one rank alone takes longer, see `straggler`. A step of the job is that of the slowest rank. Steps that grow bit by bit,
as with longer and longer sequences, are none.

Figures per step, such as medians, are then of neither part. The trace does not show whether the steps before or after
are the usual ones, nor whether the work grew: there is no saving.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.answers.diagnosis.step_costs import usual
from rankscope.primitives.activity import IDLE
from rankscope.results import Evidence, Finding, Inputs, Rule

_LEAST_STEPS = 4
"""On each side. By chance, all of twelve steps would be in such an order in 1 % of windows."""
_LONGER = 0.1
_APART = 0.5
_MOST_OF_IT = 0.5
_PARTS = {
    "compute": pl.col("compute_ns"),
    "exposed communication": pl.col("exposed_communication_ns"),
    "copies": pl.col("exposed_memcpy_ns") + pl.col("exposed_memset_ns"),
    "waiting for data": pl.col("data_loading_ns"),
    "idle time": pl.sum_horizontal(*(name for name in IDLE if name != "data_loading_ns")),
}
_ADVICE = {
    "compute": "Compare the kernels of both (rankscope analyze kernels --steps): if the same ones take longer, look at "
    "clocks, power and temperature of the devices and at other jobs on them; else the inputs grew.",
    "exposed communication": "Look at what else uses the network from then on, and whether messages grew (rankscope "
    "analyze collectives).",
    "copies": "Compare the copies of both (rankscope analyze copies --steps).",
    "waiting for data": "The first batches may have been loaded ahead: give the loader more workers, or less to do.",
    "idle time": "Look at what the hosts do from then on: other processes on their cores, garbage collection, logging.",
}


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding, of the window with the largest change."""
    frame = inputs.results.get("step_time")
    if frame is None or frame["step"].null_count() == frame.height:
        return []
    parts = [value.alias(part) for part, value in _PARTS.items()]
    steps = frame.drop_nulls("step").select("rank", "window", "step", "window_ns", *parts)
    found = [each for _, window in steps.group_by("window", maintain_order=True) if (each := _of_window(window))]
    return [max(found, key=lambda each: each[0])[1]] if found else []


def _of_window(window: pl.DataFrame) -> tuple[float, Finding] | None:
    """By how much the steps of a window become longer, relative to the shorter ones, and the finding."""
    ranks = window["rank"].n_unique()
    whole = window.filter(pl.len().over("step") == ranks)
    job = whole.group_by("step").agg(pl.col("window_ns").max()).sort("step")
    first = _first_longer(job["window_ns"].to_numpy())
    if first is None:
        return None
    at, later = int(job["step"][first]), pl.col("step") >= job["step"][first]
    before, after = (float(job.filter(side)["window_ns"].to_numpy().mean()) for side in (~later, later))
    medians = [usual(whole.filter(side), *_PARTS) for side in (~later, later)]
    grew = medians[1].select(*_PARTS) - medians[0].select(*_PARTS)
    most = max(_PARTS, key=lambda part: grew[part].to_numpy().min())
    if grew[most].to_numpy().min() < _MOST_OF_IT * (after - before):
        return None
    ratio = after / before - 1
    where = " on all ranks" if ranks > 1 else ""
    finding = Finding(
        rule.name,
        "warning",
        f"From step {at} on, steps take {100 * ratio:.0f} % longer{where}: more {most}",
        ranks=tuple(medians[0]["rank"].to_list()),
        steps=tuple(job.filter(later)["step"].to_list()),
        evidence=(
            Evidence("mean step before", round(before), "ns"),
            Evidence(f"mean step from step {at} on", round(after), "ns"),
            Evidence(f"{most} before, median over steps, mean over ranks", _mean(medians[0], most), "ns"),
            Evidence(f"{most} from step {at} on", _mean(medians[1], most), "ns"),
        ),
        advice=f"Figures per step are of neither part: choose one with --steps. {_ADVICE[most]}",
    )
    return ratio, finding


def _first_longer(step_ns: npt.NDArray[np.int64]) -> int | None:
    """The place from which on steps are longer, the one with the largest difference; None if there is none."""
    found: list[tuple[int, int]] = []
    for place in range(_LEAST_STEPS, step_ns.size - _LEAST_STEPS + 1):
        before, after = step_ns[:place], step_ns[place:]
        longer = float(np.median(after) - np.median(before))
        apart = int(after.min() - before.max())
        if longer >= _LONGER * np.median(before) and apart >= _APART * longer:
            found.append((apart, place))
    return max(found)[1] if found else None


def _mean(medians: pl.DataFrame, part: str) -> int:
    return round(float(medians[part].to_numpy().mean()))


rule = Rule("longer_steps", __doc__, ("step_time",), find)

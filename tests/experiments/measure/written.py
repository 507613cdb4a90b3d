"""A study as `rankscope measure scaling` leaves it: its result, and two jobs with traces under ids that say nothing."""

from __future__ import annotations

from pathlib import Path

from tests.experiments.measure.test_results import SETTING
from tests.kineto import small_step, trace, write

from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.results import Projected, Projection, Scaling, Share, Size, Time, TraceSummary


def traced(job: str) -> TraceSummary:
    return TraceSummary(job, 1, 100, 60, 30, 20, 0.3, 0.2)


SIZES = [
    Size("plain", 1, 1, "done", step=Time(100), speed_up=Share(1.0), efficiency=Share(1.0),
         traced=traced("jobs/plain-0")),
    Size("1", 1, 1, "done", step=Time(110), speed_up=Share(0.91, 0.9, 0.92), efficiency=Share(0.91, 0.9, 0.92)),
    Size("2", 2, 1, "done", step=Time(55), speed_up=Share(1.8, 1.7, 1.9), efficiency=Share(0.9, 0.85, 0.95),
         traced=traced("jobs/2-0")),
]  # fmt: skip
LAW = Projection(
    "usl", "S(n) = n", 0.1, 0.002, [2], ["as ever"], [Projected(4, Share(3.2, 3.0, 3.4), Share(0.8, 0.75, 0.85), 31)]
)


def write_study(folder: Path) -> Path:
    """The plain process, one rank and two; the traces of the first and the last."""
    for number, (job, ranks) in enumerate((("plain-0", 1), ("2-0", 2))):
        for rank in range(ranks):
            extra = {"rankscope": {"schema_version": 1, "run_id": f"{number}f3a9", "rank": rank, "world_size": ranks}}
            events = small_step(5e6 * number)
            write(folder / "jobs" / job / f"rank{rank}_iter1_1.trace.json", trace(events, rank=rank, **extra))
    save(Scaling(SETTING, "strong", "plain", SIZES, LAW), folder)
    return folder

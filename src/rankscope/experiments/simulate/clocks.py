"""A rank's clock, and the window in which it records.

In: a job's options. Out: each rank's offset, drift and window.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.experiments.simulate.engine import Engine, Stage
from rankscope.experiments.simulate.jitter import I64, Chance
from rankscope.experiments.simulate.job import Job

EPOCH_NS = 1_765_622_354_292_000_000
"""The job's time 0 on an exact clock."""
BASE_NS = 1_759_300_074_000_000_000
"""``baseTimeNanoseconds``, which Kineto subtracts from every time: a fixed moment some months earlier."""
LEAD_NS = 40_000
"""The profiler starts this long before the first step's range."""


@dataclass(frozen=True)
class Clock:
    """A rank's clock: recorded = EPOCH_NS + t + offset + t x drift, with t the job's true time."""

    offset_ns: int
    drift_ppb: int
    base_ns: int

    @classmethod
    def of(cls, job: Job, rank: int) -> Clock:
        """The clock of a rank, as given or drawn at random."""
        recording, chance = job.recording, Chance(job.seed)
        offset = recording.clock_offset_ns.get(rank)
        if offset is None:
            spread = recording.clock_spread_ns
            offset = round((2 * chance.uniform("clock offset", rank) - 1) * spread)
        drift = recording.drift_ppm.get(rank)
        if drift is None:
            drift = (2 * chance.uniform("clock drift", rank) - 1) * recording.drift_spread_ppm
        base = BASE_NS
        if recording.base_time == "per-rank":
            base -= round(chance.uniform("clock base", rank) * 1e6) * 1_000_000_000
        elif recording.base_time == "epoch":
            base = 0
        return cls(offset, round(drift * 1000), base)

    def recorded(self, true_ns: int) -> int:
        """A moment on this clock, in nanoseconds since 1970."""
        return EPOCH_NS + true_ns + self.offset_ns + true_ns * self.drift_ppb // 1_000_000_000

    def recorded_many(self, true_ns: I64) -> I64:
        """The same for many."""
        recorded: I64 = true_ns + (true_ns * self.drift_ppb // 1_000_000_000 + (EPOCH_NS + self.offset_ns))
        return recorded


@dataclass(frozen=True)
class Window:
    """When a rank records, in true time."""

    begin: int
    end: int

    @classmethod
    def of(cls, engine: Engine, stage: Stage, rank: int) -> Window:
        """The window of a rank: its recorded steps, moved as given or drawn at random."""
        recording, chance = engine.job.recording, Chance(engine.job.seed)
        column = int(stage.ranks.searchsorted(rank))
        shifts = []
        for name, given in (("begin", recording.window_start_ns), ("end", recording.window_end_ns)):
            drawn = round((2 * chance.uniform(f"window {name}", rank) - 1) * recording.window_spread_ns)
            shifts.append(given.get(rank, drawn))
        begin = int(stage.host[engine.job.warmup_steps, 0, column]) - LEAD_NS
        end = int(stage.host[engine.job.warmup_steps + engine.job.steps - 1, -1, column]) + 1
        return cls(begin + shifts[0], max(begin + shifts[0] + 1, end + shifts[1]))

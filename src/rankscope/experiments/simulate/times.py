"""Compute the moments of cells, in whole nanoseconds; shared by the engine and the writer.

The engine uses it for all ranks of a stage and one item at a time, to compute the starts of items. The writer uses it
again for one rank and many items, to compute every moment. Both get the same times, because random draws are hashes.

In: durations and launches of cells. Out: instants in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.experiments.simulate.jitter import I64, KERNEL_GAP_NS, LAUNCH_TO_START_NS, ONE, U64, Bool, Chance
from rankscope.experiments.simulate.job import Job
from rankscope.experiments.simulate.program import CellTable, Program

LONG_AGO = -(2**62)
_TABLES = 256


@dataclass(frozen=True)
class Keys:
    """The keys of a step's random draws, by rank."""

    host: U64
    launch: U64
    kernel: U64


@dataclass(frozen=True)
class Slowness:
    """The effects of faults and of the device itself in a step, by rank."""

    host: I64
    kernel: I64
    loader: I64


class Clockwork:
    """Durations of one program's cells."""

    def __init__(self, job: Job, program: Program, chance: Chance | None) -> None:
        """Without ``chance`` everything has its median duration."""
        self.program = program
        self._tables: dict[bytes, CellTable] = {}
        self.chance = chance
        self.host_scale = round(job.host_scale * ONE)
        self.device_scale = round(job.device_scale * ONE)

    def table(self, rows: I64) -> CellTable:
        """The durations of these rows' cells."""
        cells = self.program.cell[rows]
        # The same few sequences of cells recur over layers, steps and ranks.
        key = cells.tobytes()
        table = self._tables.get(key)
        if table is None:
            table = self.program.by_cell.of(cells)
            if len(self._tables) < _TABLES:
                self._tables[key] = table
        return table

    def keys(self, step: int, ranks: I64) -> Keys:
        """The keys of a step."""
        chance = self.chance or Chance(0)
        return Keys(*(chance.keys(purpose, step, ranks)[:, None] for purpose in ("host", "launch", "kernel")))

    def host_spans(self, rows: I64, keys: Keys, slow: Slowness) -> I64:
        """(ranks, rows, moments): the spans between moments."""
        p = self.table(rows)
        place = self.program.draw[rows][None, :]
        if self.chance is None:
            host = launch = np.full((1, len(rows)), ONE, dtype=np.int64)
        else:
            host = np.where(p.steady, ONE, self.chance.factors("host_leaf", keys.host, place))
            launch = self.chance.factors("launch_call", keys.launch, place)
        scale = np.where(p.steady, ONE, slow.host[:, None] * self.host_scale // ONE)
        host = host * scale // ONE
        launch = launch * scale // ONE
        spans: I64 = p.other_ns * host[:, :, None] // ONE
        spans += p.is_launch * (p.launch_ns * launch // ONE)[:, :, None]
        if slow.loader.any():
            loading = (p.waits_at == 2) & (p.launch_at < 0)
            spans[:, loading, 2] += slow.loader[:, None]
        return spans

    def kernels(self, rows: I64, keys: Keys, slow: Slowness) -> I64:
        """(ranks, rows): durations of their device work; 0 if there is none."""
        p = self.table(rows)
        kernel_ns = p.kernel_ns
        if self.chance is None:
            factor = np.full((1, len(rows)), ONE, dtype=np.int64)
        else:
            place = self.program.draw[rows][None, :]
            factor = np.where(
                p.is_long,
                self.chance.factors("kernel_long", keys.kernel, place),
                self.chance.factors("kernel_short", keys.kernel, place),
            )
        scale = slow.kernel[:, None] * self.device_scale // ONE
        durations: I64 = kernel_ns * factor // ONE * scale // ONE
        return durations

    def launched(self, rows: I64, moments: I64) -> I64:
        """(ranks, rows): the earliest that device work can start after its launch."""
        at = np.maximum(self.table(rows).launch_at, 0)
        # moments[..., k] is the end of span k.
        ends: I64 = moments[:, np.arange(len(rows)), at] + LAUNCH_TO_START_NS
        return ends


def in_order(launched: I64, duration: I64, works: Bool) -> tuple[I64, I64]:
    """(starts, when the stream is free again) of kernels that run one after another on a stream, along the last axis.

    Each starts when it is launched and the one before it has ended, a gap apart. From end[i] = max(launched[i],
    end[i-1]) + duration[i] follows end[i] = total[i] + max over j ≤ i of (launched[j] - total[j-1]).
    """
    occupied = np.where(works, duration + KERNEL_GAP_NS, 0)
    total = np.cumsum(occupied, axis=-1)
    lead = np.where(works, launched - (total - occupied), LONG_AGO)
    free: I64 = total + np.maximum.accumulate(lead, axis=-1)
    return free - occupied, free

"""Small jobs with known dependencies, and when they end: plain recursion over the equations of the documentation.

Each rank's host works, launches a kernel, then a collective, and goes on; the next kernel waits for the collective.
Nothing here uses rankscope's replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from rankscope.whatif.graph import Graph, graph_of
from rankscope.whatif.moments import COLLECTIVE, KERNEL_GAP_NS, SCHEMA, STEP, WORK
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.step_times import Steps

GAP = KERNEL_GAP_NS


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        host: by rank and segment, ns until its kernel and its collective are launched.
        device: by rank and segment, ns of its kernel.
        transfer: by segment, ns of its collective.
        per_step: segments of a step.
    """

    host: Sequence[Sequence[int]]
    device: Sequence[Sequence[int]]
    transfer: Sequence[int]
    per_step: int

    def ends(self) -> list[int]:
        """When each collective ends."""
        hosts, devices = [0] * len(self.host), [0] * len(self.host)
        ends = []
        for segment, transfer in enumerate(self.transfer):
            arrivals = []
            for rank in range(len(self.host)):
                launch = hosts[rank] + self.host[rank][segment]
                begin = devices[rank] if not ends else max(devices[rank], ends[-1] + GAP)
                devices[rank] = max(begin, launch) + self.device[rank][segment]
                hosts[rank] = launch
                arrivals.append(max(launch, devices[rank]))
            ends.append(max(arrivals) + transfer)
        return ends

    def step_times(self) -> list[int]:
        """From the end of one step to that of the next, without the first; of a single one from the beginning."""
        ends = self.ends()[self.per_step - 1 :: self.per_step]
        return [later - earlier for earlier, later in pairwise(ends)] or ends

    def mean_step(self) -> float:
        """Their mean."""
        return sum(self.step_times()) / len(self.step_times())

    def moments(self) -> pl.DataFrame:
        """The job as rankscope reads it."""
        ends = self.ends()
        rows: list[dict[str, object]] = []
        for rank in range(len(self.host)):
            host = device = 0
            for segment, transfer in enumerate(self.transfer):
                host += self.host[rank][segment]
                begin = max(host, device if segment == 0 else max(device, ends[segment - 1] + GAP))
                device = begin + self.device[rank][segment]
                step = segment // self.per_step
                own = {"rank": rank, "window": 0, "at_ns": host, "latency_ns": 0}
                work = {"nothing_ns": self.host[rank][segment], "device_ns": self.device[rank][segment]}
                last = segment == len(self.transfer) - 1
                rows += [
                    own | work | {"kind": WORK, "is_copy": False, "start_ns": begin, "end_ns": device},
                    own | {"kind": COLLECTIVE, "match": segment, "step": step, "stream": 20, "program": "all_reduce",
                           "start_ns": max(host, device), "end_ns": ends[segment], "woken": None if last else 1},
                ]  # fmt: skip
                assert ends[segment] >= max(host, device) + transfer
                if (segment + 1) % self.per_step == 0:
                    rows.append(own | {"kind": STEP, "step": step, "end_ns": host})
        schema = {"rank": pl.Int64, "window": pl.Int64, **SCHEMA}
        frame = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
        parts = [name for name in SCHEMA if name.endswith("_ns") and name not in ("at_ns", "start_ns", "end_ns")]
        return frame.with_columns(pl.col(name).fill_null(0) for name in parts if name != "latency_ns")

    def graph(self) -> Graph:
        """The job as rankscope replays it; all ranks run one program."""
        return graph_of(self.moments(), dict.fromkeys(range(len(self.host)), 0))

    def run(self) -> ReplayedRun:
        """The same as rankscope judges it."""
        graph = self.graph()
        return ReplayedRun(graph, Steps.of(graph))

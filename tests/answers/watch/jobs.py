"""Simulated jobs: each rank's own times are given, arrivals follow from them, and logs are written as capture does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.capture.flight_recorder import FlightCall
from rankscope.capture.watch.log import WatchLog
from rankscope.capture.watch.log_lines import LogLines, one_line
from rankscope.capture.watch.phases import StepRow
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header, log_folder

MS = 10**6
START = 1_700_000_000 * 10**9


@dataclass
class SimulatedJob:
    """Each step: load, forward with blocking collectives, backward with collectives in the background, optimizer.

    Attributes:
        ranks: how many.
        steps: how many.
        forward: pieces of the forward pass, each followed by a collective that ranks wait for.
        buckets: pieces of the backward pass, each followed by one that runs in the background.
        slow: by rank, step and place (``loading``, ``forward``, ``backward``, ``optimizer``): further ns.
        noise: of each piece, standard deviation in ns.
        clocks: by rank, what its clock is ahead, ns.
        transfer: how long a collective takes after the last arrival, ns.
        loader: whether batches come from a `DataLoader`, whose time is known.
        clock_set: in which step, and by how much the clocks of some ranks are set: ns, and the ranks.
    """

    ranks: int = 4
    steps: int = 60
    forward: int = 0
    buckets: int = 3
    slow: Callable[[int, int, str], int] = lambda _rank, _step, _place: 0
    noise: int = MS // 2
    clocks: tuple[int, ...] = ()
    transfer: int = 0
    loader: bool = True
    clock_set: tuple[int, int, tuple[int, ...]] | None = None
    seed: int = 1

    def run(self) -> tuple[list[list[StepRow]], list[list[FlightCall]], list[list[int]]]:
        """By rank: rows, calls, and the true local time of each step, from the last collective of the step before to
        the last of its own."""
        rng = random.Random(self.seed)
        now = [START] * self.ranks
        rows: list[list[StepRow]] = [[] for _ in now]
        calls: list[list[FlightCall]] = [[] for _ in now]
        local: list[list[int]] = [[] for _ in now]
        carried = [0] * self.ranks  # since the last collective
        sequence = 0

        def piece(rank, step, place, ns):
            ns = max(round(rng.gauss(ns, self.noise)), 1000) + self.slow(rank, step, place)
            now[rank] += ns
            carried[rank] += ns
            return ns

        def collective(step, *, waits):
            nonlocal sequence
            sequence += 1
            for rank, at in enumerate(now):
                ahead = self.clocks[rank] if self.clocks else 0
                size = 400 if waits else 100  # the last bucket is another one, too
                calls[rank].append(FlightCall(at + ahead, 1, "allreduce", "0", "float32", size // 4, size, sequence))
                local[rank][step] += carried[rank]
                carried[rank] = 0
            if waits:
                now[:] = [max(now) + self.transfer] * self.ranks

        for step in range(self.steps):
            began, loading, ahead = list(now), [0] * self.ranks, [0] * self.ranks
            for rank in range(self.ranks):
                local[rank].append(0)
                loading[rank] = piece(rank, step, "loading", 2 * MS)
            for _ in range(self.forward):
                for rank in range(self.ranks):
                    ahead[rank] += piece(rank, step, "forward", 20 * MS // self.forward)
                collective(step, waits=True)
            if not self.forward:
                for rank in range(self.ranks):
                    ahead[rank] = piece(rank, step, "forward", 20 * MS)
            forward_ended = list(now)
            for bucket in range(self.buckets):
                for rank in range(self.ranks):
                    piece(rank, step, "backward" if not bucket else "", 30 * MS // self.buckets)
                collective(step, waits=bucket == self.buckets - 1)
            backward_ended = list(now)
            for rank in range(self.ranks):
                optimizer = piece(rank, step, "optimizer", 5 * MS)
                forward = forward_ended[rank] - began[rank] - (loading[rank] if self.loader else 0)
                offset = self.clocks[rank] if self.clocks else 0
                rows[rank].append(
                    StepRow(
                        step,
                        began[rank] + offset,
                        now[rank] + offset,
                        loading[rank] if self.loader else None,
                        forward,
                        backward_ended[rank] - forward_ended[rank],
                        optimizer,
                        backward_ended[rank] + offset,
                        False,
                    )
                )
        if self.clock_set is not None:
            _set_clock(rows, calls, *self.clock_set)
        return rows, calls, local

    def write(
        self,
        run_dir: Path,
        *,
        restart: int = 0,
        hosts: tuple[str, ...] = (),
        unread: Callable[[int, int], bool] = lambda _rank, _number: False,
    ) -> list[list[int]]:
        """Write the logs; returns the true local times by rank.

        Args:
            unread: by rank and number, from 0, the collectives that were not read.
        """
        rows, calls, local = self.run()
        for rank in range(self.ranks):
            host = hosts[rank] if hosts else "host"
            header = Header(
                SCHEMA_VERSION, rank, run_id="one", world_size=self.ranks, host=host, restart_count=restart,
                pid=rank + 1, began_ns=START + restart,
            )  # fmt: skip
            lines, log = LogLines(), WatchLog(log_folder(run_dir, rank, self.ranks), header)
            written = [lines.step(row, 0, 0, slow=False) or "" for row in rows[rank]]
            for part in _readings(calls[rank], lambda number, of=rank: unread(of, number)):
                written.append(lines.calls(*part) or "")
            groups = one_line({"group": "0", "ranks": f"0-{self.ranks - 1}"})
            log.write(written, [groups, *lines.definitions])
        return local


def _set_clock(
    rows: list[list[StepRow]], calls: list[list[FlightCall]], step: int, by: int, ranks: tuple[int, ...]
) -> None:
    since = rows[0][step].began
    for rank in ranks:
        for at, row in enumerate(rows[rank]):
            if row.step >= step:
                times = {"began": row.began, "ended": row.ended, "backward_ended": row.backward_ended}
                rows[rank][at] = row._replace(**{name: ns + by for name, ns in times.items()})
        calls[rank][:] = [each._replace(at_ns=each.at_ns + by) if each.at_ns >= since else each for each in calls[rank]]


def _readings(
    calls: list[FlightCall], unread: Callable[[int], bool], most: int = 50
) -> Iterator[tuple[list[FlightCall], int]]:
    """The calls of each reading, and how many before them were missed."""
    found: list[FlightCall] = []
    missed = 0
    for number, call in enumerate(calls):
        if found and (unread(number) or len(found) == most):
            yield found, missed
            found, missed = [], 0
        if unread(number):
            missed += 1
        else:
            found.append(call)
    if found:
        yield found, missed

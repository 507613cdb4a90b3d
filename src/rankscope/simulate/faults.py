"""Turns faults into their effects: factors on durations, added time, added cells.

In: the faults of a job. Out: factors and additions by rank and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.simulate import calls, operators
from rankscope.simulate.cells import Cell
from rankscope.simulate.identity import AUTOGRAD, MAIN
from rankscope.simulate.jitter import I64, ONE, Bool, to_factor
from rankscope.simulate.job import Fault, Job
from rankscope.simulate.mesh import WORLD, MeshLayout
from rankscope.simulate.program import Communication, Pauses, Program

_PAUSES = {"gc": 4, "asleep": 1, "retries": 3}
_EXTRA_KERNEL_NS = 60_000


@dataclass(frozen=True)
class Nominal:
    """The undisturbed step, without jitter, to which magnitudes refer."""

    step_ns: int
    kernel_ns: tuple[int, ...]
    """By stage: compute kernels of a step."""
    host_ns: tuple[int, ...]
    """By stage: the host's own time in a step."""
    transfer_ns: tuple[dict[str, int], ...]
    """By stage and dimension: transfers of a step."""

    def taken_ns(self, fault: Fault) -> int:
        """The time that a fault takes from an affected rank per step."""
        return round(fault.ms * 1e6) if fault.ms is not None else round(fault.magnitude * self.step_ns)


def struck_ranks(fault: Fault, layout: MeshLayout) -> Bool:
    """Which ranks a fault strikes, over all ranks."""
    hit = np.ones(layout.size, dtype=np.bool_)
    if fault.ranks:
        hit[:] = False
        hit[list(fault.ranks)] = True
    places = np.unravel_index(np.arange(layout.size), layout.shape)
    for dim, coordinate in fault.where.items():
        hit &= places[layout.dims.index(dim)] == coordinate
    return hit


def struck_groups(fault: Fault, dim: str, layout: MeshLayout, ranks: I64) -> Bool:
    """For each of ``ranks`` whether a slow_network fault slows its group along ``dim``."""
    if fault.dim and fault.dim != dim:
        return np.zeros(len(ranks), dtype=np.bool_)
    if fault.link is not None:
        a, b = fault.link
        group = layout.group_of(a, dim)
        return np.isin(ranks, group if b in group else ())
    hit = struck_ranks(fault, layout)
    if dim == WORLD:
        return np.full(len(ranks), bool(hit.any()))
    axis = layout.dims.index(dim)
    any_in_group = np.broadcast_to(hit.reshape(layout.shape).any(axis=axis, keepdims=True), layout.shape)
    found: Bool = any_in_group.ravel()[ranks]
    return found


def pauses_of(job: Job, nominal: Nominal) -> list[Pauses]:
    """The cells that faults add to the program."""
    found = []
    places = 2 * job.layers * job.microbatch_count
    for index, fault in enumerate(job.faults):
        taken = nominal.taken_ns(fault)
        count = min(fault.pauses or _PAUSES.get(fault.style, places), places)
        each = max(taken // count, 1)
        copies, kernel_ns = 1, 0
        if fault.style in ("kernels", "copies"):
            copies = max(1, round(each / _EXTRA_KERNEL_NS))
            kernel_ns = max(each // copies, 1_000)
        main = _cell(fault, each, kernel_ns, MAIN, job)
        autograd = _cell(fault, each, kernel_ns, AUTOGRAD, job)
        if main is not None and autograd is not None:
            found.append(Pauses(index, (main, autograd), count, copies, synchronizes=fault.style == "retries"))
    return found


def _cell(fault: Fault, each: int, kernel_ns: int, thread: str, job: Job) -> Cell | None:
    if fault.style == "gc":
        return calls.garbage_collection(each, thread)
    if fault.style == "asleep":
        return calls.pause(each, thread)
    if fault.style == "retries":
        return calls.allocation_retry(each, thread)
    if fault.style == "copies":
        return calls.copy_on_device(kernel_ns, thread)
    if fault.style == "kernels":
        return operators.plain(operators.MLP[1], thread, stacks=job.recording.stacks, kernel_ns=kernel_ns)
    return None


class Effects:
    """What faults do to the ranks of one stage; arrays are (steps, ranks)."""

    def __init__(self, job: Job, nominal: Nominal | None, stage: int, ranks: I64, step_numbers: Sequence[int]) -> None:
        shape = (len(step_numbers), len(ranks))
        self.kernel: I64 = np.full(shape, ONE, dtype=np.int64)
        self.host: I64 = np.full(shape, ONE, dtype=np.int64)
        self.loader: I64 = np.zeros(shape, dtype=np.int64)
        self.active: Bool = np.zeros((len(job.faults), *shape), dtype=np.bool_)
        self._network: list[tuple[Fault, int, Bool, list[str]]] = []
        self._layout, self._ranks, self._nominal = job.layout(), ranks, nominal
        self._groups: dict[tuple[int, str], Bool] = {}
        if nominal is None:
            return
        for index, fault in enumerate(job.faults):
            in_step = np.array([fault.steps is None or n in fault.steps for n in step_numbers], dtype=np.bool_)
            taken = nominal.taken_ns(fault)
            if fault.kind == "slow_network":
                self._network.append((fault, taken, in_step, self._over_link(fault) if fault.link else []))
                continue
            hit = in_step[:, None] & struck_ranks(fault, self._layout)[ranks][None, :]
            if fault.kind == "slow_device":
                self._stretch(self.kernel, hit, taken, nominal.kernel_ns[stage])
            elif fault.kind == "slow_host" and fault.style == "stretch":
                self._stretch(self.host, hit, taken, nominal.host_ns[stage])
            elif fault.kind == "data_loading":
                self.loader[hit] += taken
            else:
                self.active[index] = hit

    @staticmethod
    def _stretch(factors: I64, hit: Bool, taken: int, whole: int) -> None:
        factor = to_factor(1 + taken / max(whole, 1))
        factors[hit] = factors[hit] * factor // ONE

    def transfer(self, communication: Communication, step: int) -> I64:
        """The factors on one collective's transfer, by rank; the same for all of a group."""
        factors: I64 = np.full(len(self._ranks), ONE, dtype=np.int64)
        dim = communication.message.dim
        for number, (fault, taken, in_step, shared) in enumerate(self._network):
            if not in_step[step] or self._nominal is None:
                continue
            if (number, dim) not in self._groups:
                self._groups[number, dim] = struck_groups(fault, dim, self._layout, self._ranks)
            # A link carries the groups of several dimensions: what it takes, it takes of all of them together.
            # A middle stage sends twice what the last one does: both ends of a link must be slowed alike.
            whole = sum(max(each.get(other, 0) for each in self._nominal.transfer_ns) for other in shared or [dim])
            self._stretch(factors, self._groups[number, dim], taken, whole)
        return factors

    def _over_link(self, fault: Fault) -> list[str]:
        """The dimensions of which a group has both ends of the link."""
        every = np.arange(self._layout.size)
        dims = sorted({dim for each in (self._nominal.transfer_ns if self._nominal else ()) for dim in each})
        return [dim for dim in dims if struck_groups(fault, dim, self._layout, every).any()]


def sums(program: Program) -> tuple[int, int]:
    """(compute kernels, host) of a program's step without jitter, ns."""
    table = program.by_cell
    waiting = np.where(table.waits_at >= 0, table.spans[np.arange(len(program.cells)), table.waits_at], 0)
    uses = np.bincount(program.cell, minlength=len(program.cells))
    return int((table.kernel_ns * uses).sum()), int(((table.spans.sum(axis=1) - waiting) * uses).sum())

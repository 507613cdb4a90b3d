"""Turn faults into their effects: factors on durations, added time, added cells.

In: the faults of a job. Out: factors and additions by rank and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.experiments.simulate import calls, operators
from rankscope.experiments.simulate.cells import Cell
from rankscope.experiments.simulate.identity import AUTOGRAD, MAIN
from rankscope.experiments.simulate.jitter import I64, ONE, Bool, to_factor
from rankscope.experiments.simulate.job import Fault, Job
from rankscope.experiments.simulate.mesh import WORLD, MeshLayout
from rankscope.experiments.simulate.program import Communication, Pauses, Program

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
        """The time that a fault costs an affected rank per step."""
        return round(fault.ms * 1e6) if fault.ms is not None else round(fault.magnitude * self.step_ns)


def affected_ranks(fault: Fault, layout: MeshLayout) -> Bool:
    """A mask over all ranks: those that a fault affects."""
    affected = np.ones(layout.size, dtype=np.bool_)
    if fault.ranks:
        affected[:] = False
        affected[list(fault.ranks)] = True
    coordinates = np.unravel_index(np.arange(layout.size), layout.shape)
    for dim, coordinate in fault.where.items():
        affected &= coordinates[layout.dims.index(dim)] == coordinate
    return affected


def affected_groups(fault: Fault, dim: str, layout: MeshLayout, ranks: I64) -> Bool:
    """For each of ``ranks`` whether a slow_network fault slows its group along ``dim``."""
    if fault.dim and fault.dim != dim:
        return np.zeros(len(ranks), dtype=np.bool_)
    if fault.link is not None:
        a, b = fault.link
        group = layout.group_of(a, dim)
        return np.isin(ranks, group if b in group else ())
    affected = affected_ranks(fault, layout)
    if dim == WORLD:
        return np.full(len(ranks), bool(affected.any()))
    axis = layout.dims.index(dim)
    any_in_group = np.broadcast_to(affected.reshape(layout.shape).any(axis=axis, keepdims=True), layout.shape)
    mask: Bool = any_in_group.ravel()[ranks]
    return mask


def pauses_of(job: Job, nominal: Nominal) -> list[Pauses]:
    """The cells that faults add to the program."""
    pauses = []
    places = 2 * job.layers * job.microbatch_count
    for index, fault in enumerate(job.faults):
        cost_ns = nominal.taken_ns(fault)
        count = min(fault.pauses or _PAUSES.get(fault.style, places), places)
        pause_ns = max(cost_ns // count, 1)
        copies, kernel_ns = 1, 0
        if fault.style in ("kernels", "copies"):
            copies = max(1, round(pause_ns / _EXTRA_KERNEL_NS))
            kernel_ns = max(pause_ns // copies, 1_000)
        main = _cell(fault, pause_ns, kernel_ns, MAIN, job)
        autograd = _cell(fault, pause_ns, kernel_ns, AUTOGRAD, job)
        if main is not None and autograd is not None:
            pauses.append(Pauses(index, (main, autograd), count, copies, synchronizes=fault.style == "retries"))
    return pauses


def _cell(fault: Fault, pause_ns: int, kernel_ns: int, thread: str, job: Job) -> Cell | None:
    if fault.style == "gc":
        return calls.garbage_collection(pause_ns, thread)
    if fault.style == "asleep":
        return calls.pause(pause_ns, thread)
    if fault.style == "retries":
        return calls.allocation_retry(pause_ns, thread)
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
            cost_ns = nominal.taken_ns(fault)
            if fault.kind == "slow_network":
                self._network.append((fault, cost_ns, in_step, self._over_link(fault) if fault.link else []))
                continue
            affected = in_step[:, None] & affected_ranks(fault, self._layout)[ranks][None, :]
            if fault.kind == "slow_device":
                self._stretch(self.kernel, affected, cost_ns, nominal.kernel_ns[stage])
            elif fault.kind == "slow_host" and fault.style == "stretch":
                self._stretch(self.host, affected, cost_ns, nominal.host_ns[stage])
            elif fault.kind == "data_loading":
                self.loader[affected] += cost_ns
            else:
                self.active[index] = affected

    @staticmethod
    def _stretch(factors: I64, affected: Bool, cost_ns: int, total_ns: int) -> None:
        factor = to_factor(1 + cost_ns / max(total_ns, 1))
        factors[affected] = factors[affected] * factor // ONE

    def transfer(self, communication: Communication, step: int) -> I64:
        """The factors on one collective's transfer, by rank; the same for all of a group."""
        factors: I64 = np.full(len(self._ranks), ONE, dtype=np.int64)
        dim = communication.message.dim
        for number, (fault, cost_ns, in_step, shared) in enumerate(self._network):
            if not in_step[step] or self._nominal is None:
                continue
            if (number, dim) not in self._groups:
                self._groups[number, dim] = affected_groups(fault, dim, self._layout, self._ranks)
            # A link carries the groups of several dimensions, so its cost is spread over all of them. A middle stage
            # sends twice as much as the last one, but both ends of a link must be slowed by the same factor.
            total_ns = sum(
                max(by_dim.get(other, 0) for by_dim in self._nominal.transfer_ns) for other in shared or [dim]
            )
            self._stretch(factors, self._groups[number, dim], cost_ns, total_ns)
        return factors

    def _over_link(self, fault: Fault) -> list[str]:
        """The dimensions with a group that contains both ends of the link."""
        all_ranks = np.arange(self._layout.size)
        dims = sorted({dim for by_dim in (self._nominal.transfer_ns if self._nominal else ()) for dim in by_dim})
        return [dim for dim in dims if affected_groups(fault, dim, self._layout, all_ranks).any()]


def sums(program: Program) -> tuple[int, int]:
    """(compute kernels, host) of a program's step without jitter, ns."""
    table = program.by_cell
    waiting = np.where(table.waits_at >= 0, table.spans[np.arange(len(program.cells)), table.waits_at], 0)
    uses = np.bincount(program.cell, minlength=len(program.cells))
    return int((table.kernel_ns * uses).sum()), int(((table.spans.sum(axis=1) - waiting) * uses).sum())

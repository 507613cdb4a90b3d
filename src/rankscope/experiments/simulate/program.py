"""Build the program of a pipeline stage: the cells of one step in order, the same for all ranks of the stage.

The order is torch's: load, forward and backward of every microbatch (one forward, one backward in the pipeline's
steady state), gradients summed while the backward pass runs, optimizer, loss. Faults that add events (more work,
pauses, retries) are separate items, which only the affected ranks and steps run.

In: a job and a stage. Out: items and arrays for the engine and the writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from rankscope.experiments.simulate import calls, operators
from rankscope.experiments.simulate.calls import Message
from rankscope.experiments.simulate.cells import DEVICE_END, DEVICE_START, HOST_MOMENTS, SEQUENCE, Cell
from rankscope.experiments.simulate.identity import AUTOGRAD, MAIN
from rankscope.experiments.simulate.jitter import I64, Bool
from rankscope.experiments.simulate.job import Job
from rankscope.experiments.simulate.mesh import WORLD, MeshLayout

ACTIVATION_ELEMENTS = 4_194_304
LAYER_ELEMENTS = 8_388_608
ROWS_PER_ITEM = 256
"""Longer sequences of cells are split, so that the engine's arrays (ranks x cells x moments) stay small."""

LONG_KERNEL_NS = 20_000

DRAWS_OF_FAULTS = 1 << 40
DRAWS_OF_A_FAULT = 1 << 20

STREAMS = {WORLD: 19, "tp": 23, "ep": 27, "dp": 31, "dp_gather": 35}
P2P_STREAMS = {("send", True): 39, ("recv", True): 43, ("send", False): 47, ("recv", False): 51}


@dataclass(frozen=True)
class Communication:
    """A collective of the step's program, or one half of a send and receive."""

    index: int
    message: Message
    thread: str
    sequence: int
    """Its number among those of its dimension in a step; the two halves of a send and receive share one."""


@dataclass(frozen=True)
class Item:
    """The unit that the engine executes."""

    kind: str
    """cells, communication, wait or synchronize."""
    first: int
    count: int
    fault: int = -1
    communication: int = -1
    """The index of the communication that is launched, or waited for."""


@dataclass(frozen=True)
class Range:
    """An annotation around several items: from a moment of one row to a moment of another."""

    category: str
    name: str
    thread: str
    start: tuple[int, int]
    end: tuple[int, int]
    kernels: tuple[int, int] | None = None
    """The rows whose device work its copy on the device spans."""

    def moments(self) -> list[tuple[int, int]]:
        """The (row, moment) pairs that it depends on."""
        echo = [(self.kernels[0], DEVICE_START), (self.kernels[1], DEVICE_END)] if self.kernels else []
        return [self.start, self.end, *echo]


@dataclass(frozen=True)
class Pauses:
    """The cell that a fault adds, and at how many places."""

    fault: int
    on_thread: tuple[Cell, Cell]
    """On the main thread, and on autograd's."""
    places: int
    """0: at every place."""
    copies: int = 1
    synchronizes: bool = False


@dataclass
class Program:
    """A stage's step, and the arrays that the engine and the writer compute with."""

    rows: list[Cell] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    """The number of each row's random draws: rows of the undisturbed step count as if no fault had added any."""
    sequence: list[int] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)

    def freeze(self) -> None:
        """Make the arrays, after all rows are added. Large ones are by kind of cell, because rows may be millions."""
        self.cells: list[Cell] = list(dict.fromkeys(self.rows))
        numbers = {cell: number for number, cell in enumerate(self.cells)}
        self.cell: I64 = np.array([numbers[c] for c in self.rows], dtype=np.int64)
        self.draw: I64 = np.array(self.draws, dtype=np.int64)
        spans = np.array([c.spans_ns for c in self.cells], dtype=np.int64).reshape(-1, HOST_MOMENTS)
        launch_at = np.array([c.launch_at for c in self.cells], dtype=np.int64)
        kernel_ns = np.array([c.kernel_ns for c in self.cells], dtype=np.int64)
        is_launch = launch_at[:, None] == np.arange(HOST_MOMENTS)
        self.by_cell = CellTable(
            spans,
            launch_at,
            is_launch,
            (spans * is_launch).sum(axis=1),
            spans * ~is_launch,
            kernel_ns,
            kernel_ns > LONG_KERNEL_NS,
            np.array([c.steady for c in self.cells], dtype=np.bool_),
            np.array([c.waits_at for c in self.cells], dtype=np.int64),
        )
        self.item: I64 = np.repeat(np.arange(len(self.items)), [item.count for item in self.items])
        taken = np.array([c.ids for c in self.cells], dtype=np.int64)[self.cell]
        self.ids: I64 = np.cumsum(taken, axis=0) - taken
        """(rows, counters): the first id of each counter that a row takes."""
        self.id_counts: list[int] = taken.sum(axis=0).tolist()
        self.ids[:, SEQUENCE] = self.sequence


@dataclass(frozen=True)
class CellTable:
    """The durations of each kind of cell; the first axis is ``Program.cells``."""

    spans: I64
    launch_at: I64
    is_launch: Bool
    launch_ns: I64
    other_ns: I64
    kernel_ns: I64
    is_long: Bool
    steady: Bool
    waits_at: I64

    def of(self, cells: I64) -> CellTable:
        """The same, a row for each of ``cells``."""
        return CellTable(*(getattr(self, f.name)[cells] for f in fields(self)))


class _Writer:
    """Writes a program item by item."""

    def __init__(self, job: Job, layout: MeshLayout, stage: int, pauses: Sequence[Pauses]) -> None:
        self.job, self.layout, self.stage = job, layout, stage
        self.stacks = job.recording.stacks
        self.p = Program()
        self.pauses = pauses
        self.cells: dict[object, Cell] = {}
        self.operators = 0
        self.per_dim: dict[str, int] = {}
        self.place = 0
        self.drawn: dict[int, int] = {}
        # Places where a fault can take effect: the layers' passes, forward and backward.
        self.places = 2 * job.layers * job.microbatch_count

    def cell(self, key: object, make: Cell) -> Cell:
        return self.cells.setdefault(key, make)

    def add(self, rows: list[tuple[Cell, int]], kind: str = "cells", fault: int = -1, communication: int = -1) -> int:
        first = len(self.p.rows)
        draw = self.drawn.get(fault, 0 if fault < 0 else DRAWS_OF_FAULTS + fault * DRAWS_OF_A_FAULT)
        self.drawn[fault] = draw + len(rows)
        self.p.draws.extend(range(draw, draw + len(rows)))
        for start in range(0, len(rows), ROWS_PER_ITEM):
            part = rows[start : start + ROWS_PER_ITEM]
            self.p.items.append(Item(kind, len(self.p.rows), len(part), fault, communication))
            self.p.rows.extend(row for row, _ in part)
            self.p.sequence.extend(sequence for _, sequence in part)
        return first

    def one(self, name: str, make: Cell, kind: str = "cells", fault: int = -1, communication: int = -1) -> int:
        return self.add([(self.cell(name, make), 0)], kind, fault, communication)

    def moment(self, thread: str = MAIN) -> int:
        return self.one("moment " + thread, calls.moment(thread))

    def communicate(
        self,
        kind: str,
        dim: str,
        elements: int,
        thread: str,
        *,
        stream: int = 0,
        forward: bool = True,
        sequence: int = -1,
    ) -> int:
        """Launch a collective over the group along ``dim``; returns its index, or -1 if the group is one rank."""
        n = self.layout.extent(dim)
        if n == 1:
            return -1
        into = elements // n if kind == "all_gather" else elements
        out = elements // n if kind == "reduce_scatter" else elements
        dtype = "Float" if dim == WORLD else "BFloat16"
        message = Message(kind, dim, stream or STREAMS[dim], into, out, dtype, forward)
        if sequence < 0:
            sequence = self.per_dim.get(dim, 0)
            self.per_dim[dim] = sequence + 1
        index = len(self.p.communications)
        self.p.communications.append(Communication(index, message, thread, sequence))
        recording = self.job.recording
        make = calls.communication(
            message, thread, metadata=recording.collective_metadata, sequence_numbers=recording.sequence_numbers
        )
        self.add([(self.cell((message, thread), make), sequence)], "communication", communication=index)
        return index

    def wait(self, communication: int, thread: str) -> None:
        if communication >= 0:
            self.one("wait " + thread, calls.wait(thread), "wait", communication=communication)

    def add_faults(self, thread: str) -> None:
        """Add the cells of faults at this place."""
        for pause in self.pauses:
            places = pause.places or self.places
            if self.place * places // self.places == (self.place + 1) * places // self.places:
                continue
            if pause.synchronizes:
                self.one(f"sync {thread}", calls.device_synchronize(), "synchronize", pause.fault)
            self.add([(pause.on_thread[thread == AUTOGRAD], 0)] * pause.copies, "cells", pause.fault)
        self.place += 1

    # --- the step ---

    def step(self) -> Program:
        begin = self.one("step", calls.step_begin())
        load = self.one("load", calls.load_batch(stacks=self.stacks))
        copied = load
        if self.stage == 0:
            copied = self.one("copy_in", calls.copy_in(stacks=self.stacks))
        first_kernel = copied if self.stage == 0 else load + 1
        self.one("zero_grad", calls.zero_gradients(stacks=self.stacks))
        gradients = self.microbatches()
        optimizer = self.moment()
        for gradient in gradients:
            self.wait(gradient, MAIN)
        if self.job.gradient_norm:
            self.wait(self.communicate("all_reduce", WORLD, 1, MAIN), MAIN)
        update = operators.plain(operators.OPTIMIZER, MAIN, stacks=self.stacks)
        self.add([(self.cell("update", update), 0)] * max(1, self.job.layers // 2))
        last_kernel = len(self.p.rows) - 1
        end_optimizer = self.moment()
        self.range("user_annotation", "Optimizer.step#AdamW.step", MAIN, optimizer, end_optimizer)
        if self.job.synchronize:
            last_kernel = self.one("read_loss", calls.read_loss(stacks=self.stacks), "synchronize")
        end = self.moment()
        self.range("user_annotation", calls.PROFILER_STEP, MAIN, begin, end, (first_kernel, last_kernel))
        self.p.freeze()
        return self.p

    def range(
        self, category: str, name: str, thread: str, start: int, end: int, kernels: tuple[int, int] | None = None
    ) -> None:
        self.p.ranges.append(Range(category, name, thread, (start, 0), (end, 1), kernels=kernels))

    def microbatches(self) -> list[int]:
        """Forward and backward of all microbatches, alternating once the pipeline is full (1F1B)."""
        count, depth = self.job.microbatch_count, self.layout.stages
        ahead = min(depth - self.stage - 1, count)
        forwards: dict[int, list[list[int]]] = {}
        gradients: list[int] = []
        order = [("F", m) for m in range(ahead)]
        for m in range(count - ahead):
            order += [("F", m + ahead), ("B", m)]
        order += [("B", m) for m in range(count - ahead, count)]
        for what, m in order:
            if what == "F":
                forwards[m] = self.forward(m)
            else:
                gradients += self.backward(m, forwards.pop(m), last=m == count - 1)
        return gradients

    def p2p(self, kind: str, m: int, thread: str, *, forward: bool) -> int:
        count = self.job.microbatch_count
        return self.communicate(
            kind,
            "pp",
            ACTIVATION_ELEMENTS,
            thread,
            stream=P2P_STREAMS[kind, forward],
            forward=forward,
            sequence=m if forward else count + m,
        )

    def half(
        self, works: tuple[operators.Work, ...], thread: str, part: int, sequences: list[int] | None = None
    ) -> list[int]:
        """The kernels of half a layer: backward if ``sequences`` are given, the numbers of their forward operators."""
        count = self.job.kernels_per_layer
        count = (count + 1) // 2 if part == 0 else count // 2
        chosen = [works[i % len(works)] for i in range(count)]
        if sequences is None:
            numbers = list(range(self.operators, self.operators + count))
            self.operators += count
            cells = [self.cell(("F", w), operators.forward(w, stacks=self.stacks)) for w in chosen]
            rows = list(zip(cells, numbers, strict=True))
        else:
            numbers = sequences
            cells = [self.cell(("B", w), operators.backward(w, stacks=self.stacks)) for w in chosen]
            rows = list(zip(reversed(cells), reversed(numbers), strict=True))
        if rows:
            self.add(rows)
        return numbers

    def tensor_parallel(self, kind: str, thread: str) -> None:
        if self.job.tensor_parallel == "sequence":
            self.wait(self.communicate(kind, "tp", ACTIVATION_ELEMENTS, thread), thread)
        elif kind != "all_gather":
            self.wait(self.communicate("all_reduce", "tp", ACTIVATION_ELEMENTS, thread), thread)

    def gather(self, layer: int, thread: str) -> int:
        if self.job.data_parallel != "fsdp" or not 0 <= layer < self.job.layers:
            return -1
        return self.communicate("all_gather", "dp", LAYER_ELEMENTS, thread, stream=STREAMS["dp_gather"])

    def expert(self, thread: str) -> None:
        self.wait(self.communicate("all_to_all", "ep", ACTIVATION_ELEMENTS, thread), thread)

    def forward(self, m: int) -> list[list[int]]:
        start = self.moment()
        if self.stage > 0:
            self.wait(self.p2p("recv", m, MAIN, forward=True), MAIN)
        gathered = self.gather(0, MAIN)
        layers: list[list[int]] = []
        for layer in range(self.job.layers):
            opened = self.moment() if self.stacks else -1
            following = self.gather(layer + 1, MAIN)
            self.wait(gathered, MAIN)
            gathered = following
            self.tensor_parallel("all_gather", MAIN)
            first = self.half(operators.ATTENTION, MAIN, 0)
            self.tensor_parallel("reduce_scatter", MAIN)
            self.expert(MAIN)
            self.tensor_parallel("all_gather", MAIN)
            second = self.half(operators.MLP, MAIN, 1)
            self.tensor_parallel("reduce_scatter", MAIN)
            self.expert(MAIN)
            self.add_faults(MAIN)
            layers.append(first + second)
            if opened >= 0:
                self.range("python_function", f"nn.Module: TransformerBlock_{layer}", MAIN, opened, self.moment())
        if self.stage < self.layout.stages - 1:
            self.p2p("send", m, MAIN, forward=True)
        self.range("user_annotation", "## forward ##", MAIN, start, self.moment())
        return layers

    def backward(self, m: int, layers: list[list[int]], *, last: bool) -> list[int]:
        gradients: list[int] = []
        thread = AUTOGRAD
        if self.stage < self.layout.stages - 1:
            self.wait(self.p2p("recv", m, thread, forward=False), thread)
        gathered = self.gather(self.job.layers - 1, thread)
        bucket = 0
        half = (self.job.kernels_per_layer + 1) // 2
        for layer in reversed(range(self.job.layers)):
            following = self.gather(layer - 1, thread)
            self.wait(gathered, thread)
            gathered = following
            self.expert(thread)
            self.tensor_parallel("all_gather", thread)
            self.half(operators.MLP, thread, 1, layers[layer][half:])
            self.tensor_parallel("reduce_scatter", thread)
            self.expert(thread)
            self.tensor_parallel("all_gather", thread)
            self.half(operators.ATTENTION, thread, 0, layers[layer][:half])
            self.tensor_parallel("reduce_scatter", thread)
            self.add_faults(thread)
            if self.job.data_parallel == "fsdp":
                gradients.append(self.communicate("reduce_scatter", "dp", LAYER_ELEMENTS, thread))
                continue
            bucket += 1
            if last and (bucket == self.job.layers_per_bucket or layer == 0):
                gradients.append(self.communicate("all_reduce", "dp", bucket * LAYER_ELEMENTS, thread))
                bucket = 0
        if self.stage > 0:
            self.p2p("send", m, thread, forward=False)
        return gradients


def build(job: Job, stage: int, pauses: Sequence[Pauses] = ()) -> Program:
    """The program of a stage's ranks; ``pauses`` are what faults add to it."""
    return _Writer(job, job.layout(), stage, pauses).step()

"""One rank's file: the job's true moments, seen through that rank's clock and window, as Kineto's text."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.simulate import header
from rankscope.simulate.calls import PROFILER_STEP
from rankscope.simulate.cells import (
    COMPUTE_STREAM,
    DEVICE_AND_RUNTIME,
    DEVICE_END,
    DEVICE_START,
    HOST_MOMENTS,
    MAIN_HOST,
    MOMENTS,
    Cell,
)
from rankscope.simulate.clocks import Clock, Window
from rankscope.simulate.engine import Engine, Stage
from rankscope.simulate.jitter import I64, Bool, Chance
from rankscope.simulate.job import Lost
from rankscope.simulate.layout import Layout, microseconds
from rankscope.simulate.pieces import (
    LOSS_CLASSES,
    RANK_MARK,
    Bases,
    Compiled,
    Piece,
    Section,
    compile_cell,
    kept_in_window,
)
from rankscope.simulate.program import Range
from rankscope.simulate.times import Keys, Slowness, in_order

PIECE_ROWS = 1536
KEPT_ROWS = 24_576
"""Programs up to this long keep their texts from step to step and rank to rank; longer ones make them anew."""

FIRST_CORRELATION = 40_000
_HOST_MOMENT = np.arange(MOMENTS) < HOST_MOMENTS


@dataclass(frozen=True)
class LostEvent:
    """An event that a file lacks."""

    rank: int
    step: int
    name: str
    as_what: str
    ts: str
    """As it would have stood in the file."""


class StageText:
    """The texts of a stage, shared by its ranks."""

    def __init__(self, engine: Engine, stage: Stage) -> None:
        self.stage = stage
        self.program = stage.program
        self.layout = Layout(engine.job.recording.layout)
        self.compiled: dict[Cell, tuple[Compiled, ...]] = {
            cell: compile_cell(cell, self.layout) for cell in self.program.cells
        }
        self.long = len(self.program.rows) > KEPT_ROWS
        self._kept: dict[tuple[bool, ...], list[Piece]] = {}

    def pieces(self, active: tuple[bool, ...]) -> Iterator[Piece]:
        """The step's pieces where these faults act."""
        if self.long:
            return self._make(active)
        if active not in self._kept:
            self._kept[active] = list(self._make(active))
        return iter(self._kept[active])

    def _make(self, active: tuple[bool, ...]) -> Iterator[Piece]:
        rows: list[I64] = []
        count = 0
        for item in self.program.items:
            if item.fault >= 0 and not active[item.fault]:
                continue
            rows.append(np.arange(item.first, item.first + item.count))
            count += item.count
            if count >= PIECE_ROWS:
                yield Piece(self.program, np.concatenate(rows), self.compiled)
                rows, count = [], 0
        if rows:
            yield Piece(self.program, np.concatenate(rows), self.compiled)


class RankTrace:
    """The text of one rank's file, piece by piece."""

    def __init__(self, engine: Engine, text: StageText, rank: int, file_name: str = "trace.json") -> None:
        self.engine, self.text, self.stage = engine, text, text.stage
        self.rank, self.file_name = rank, file_name
        self.job, self.recording = engine.job, engine.job.recording
        self.column = int(np.searchsorted(self.stage.ranks, rank))
        self.clock = Clock.of(self.job, rank)
        self.window = Window.of(engine, self.stage, rank)
        self.replace = header.rank_texts(self.job, engine.layout, rank)
        self.lost: list[LostEvent] = []
        self.events = 0
        self._specialised: dict[int, str] = {}
        self._sequences = max(int(s.program.sequences.max(initial=0)) for s in engine.stages) + 1
        self._chosen: dict[tuple[int, int, int], set[int]] | None = None
        self._last_kernel = 0
        self._seen: dict[tuple[int, int], I64] = {}

    # --- when ---

    def _drawn_by(self, step: int) -> tuple[Keys, Slowness]:
        slow = self.engine.slowness(self.stage, step)
        c = slice(self.column, self.column + 1)
        one = Slowness(slow.host[c], slow.kernel[c], slow.loader[c])
        return self.stage.clockwork.keys(step, self.stage.ranks[c]), one

    def moments(self, rows: I64, step: int) -> I64:
        """(rows, moments) in true time; ``rows`` are whole items in order."""
        stage, program, column = self.stage, self.text.program, self.column
        keys, slow = self._drawn_by(step)
        spans = stage.clockwork.host_spans(rows, keys, slow)[0]
        until = np.cumsum(spans.ravel()).reshape(spans.shape)
        items = program.item[rows]
        new = np.flatnonzero(np.diff(items, prepend=-1))
        before = np.repeat((until - spans)[new, 0], np.diff(new, append=len(rows)))
        found = np.empty((len(rows), MOMENTS), dtype=np.int64)
        host = found[:, :HOST_MOMENTS]
        host[:] = until - before[:, None] + stage.host[step, items, column][:, None]
        table = stage.clockwork.table(rows)
        works = table.kernel_ns > 0
        durations = stage.clockwork.kernels(rows, keys, slow)[0]
        launched = stage.clockwork.launched(rows, host[None])[0]
        launched = np.maximum(launched, stage.stream[step, items, column])
        found[:, DEVICE_START], found[:, DEVICE_END] = in_order(launched, durations, works)
        found[:, DEVICE_END] = found[:, DEVICE_START] + durations
        found[~works, DEVICE_START:] = 0
        for place in new.tolist():
            item = program.items[int(items[place])]
            if item.kind == "communication":
                found[place, DEVICE_START] = stage.arrival[step, item.communication, column]
                found[place, DEVICE_END] = stage.end[step, item.communication, column]
            elif item.kind == "synchronize":
                last = place + item.count - 1
                late = stage.host[step, items[place] + 1, column] - host[last, -1]
                host[last, table.waits_at[last] :] += late
        return found

    def _moments_of(self, piece: Piece, place: int, step: int) -> I64:
        """A piece's moments; those of short programs are kept, for the next section."""
        if self.text.long:
            return self.moments(piece.rows, step)
        if (step, place) not in self._seen:
            self._seen[step, place] = self.moments(piece.rows, step)
        return self._seen[step, place]

    # --- what ---

    def chunks(self) -> Iterator[str]:
        """The file's text."""
        lines = self.text.layout.lines
        begin = self._ts(self.window.begin)
        yield header.header(self)
        if lines:
            yield header.names(self, begin)
        steps = [s for s in range(self.engine.steps) if self._reaches(s)]
        self._choose_lost(steps)
        for section in range(3):
            for step in steps:
                yield from self._section(section, step)
                if section == MAIN_HOST:
                    yield self._ranges(step)
        yield self._stop()
        if not lines:
            yield header.names(self, begin)
        length = microseconds(self.clock.recorded(self.window.end) - self.clock.recorded(self.window.begin))
        end = self._ts(max(self.window.end, self._last_kernel) + 200_000)
        yield self.text.layout.footer(begin, length, end, self.file_name)

    def _ts(self, true_ns: int) -> str:
        return microseconds(self.clock.recorded(true_ns) - self.clock.base_ns)

    def _reaches(self, step: int) -> bool:
        """Whether anything of a step can lie in the window."""
        stage, c = self.stage, self.column
        last = max(int(stage.host[step, -1, c]), int(stage.end[step, :, c].max(initial=0)))
        last = max(
            last, int(stage.stream[min(step + 1, self.engine.steps - 1), 0 if step + 1 < self.engine.steps else -1, c])
        )
        return last >= self.window.begin and int(stage.host[step, 0, c]) < self.window.end

    def _active(self, step: int) -> tuple[bool, ...]:
        return tuple(self.stage.effects.active[:, step, self.column].tolist())

    def _bases(self, step: int) -> Bases:
        program = self.text.program
        externals = program.external_count + 2 * len(program.ranges) + 8
        return Bases(
            1 + step * externals,
            FIRST_CORRELATION + step * (program.correlation_count + 8),
            step * self._sequences + 1,
            self.engine.step_numbers[step],
        )

    def _section(self, number: int, step: int) -> Iterator[str]:
        for place, piece in enumerate(self.text.pieces(self._active(step))):
            section = piece.section(number)
            if not section.count:
                continue
            moments = self._moments_of(piece, place, step)
            keep = self._kept(section, piece, moments)
            if number == DEVICE_AND_RUNTIME:
                ran = section.on_device if keep is None else section.on_device & keep
                last = moments.ravel()[section.to_moment[ran]].max(initial=0)
                self._last_kernel = max(self._last_kernel, int(last))
            keep = self._lose(section, moments, keep, step, place, number)
            self.events += section.count if keep is None else int(keep.sum())
            if keep is not None:
                # What the host is in the midst of when the recording ends, ends there.
                moments = np.where(_HOST_MOMENT, np.minimum(moments, self.window.end), moments)
            recorded = self.clock.recorded_many(moments) - self.clock.base_ns
            template = "" if keep is not None else self._template(section)
            yield section.fill(template, recorded, self._bases(step), keep, self.replace)

    def _template(self, section: Section) -> str:
        if not self.text.long and id(section) in self._specialised:
            return self._specialised[id(section)]
        parts = section.parts()
        template = "".join([self.replace[part] if i & 1 else part for i, part in enumerate(parts)])
        if not self.text.long:
            self._specialised[id(section)] = template
        return template

    def _kept(self, section: Section, piece: Piece, moments: I64) -> Bool | None:
        begin, end = self.window.begin, self.window.end
        host = moments[:, :HOST_MOMENTS]
        if int(host.min()) >= begin and int(host.max()) < end:
            return None
        at = np.maximum(self.stage.clockwork.table(piece.rows).launch_at - 1, 0)
        launch = np.take_along_axis(host, at[:, None], axis=1)[:, 0]
        return kept_in_window(section, moments, launch, begin, end)

    # --- lost events ---

    def _eligible(self, section: Section, keep: Bool | None, what: str) -> I64:
        can = section.loses > 0 if what == "any" else section.loses == LOSS_CLASSES.index(what)
        return np.flatnonzero(can if keep is None else can & keep)

    def _choose_lost(self, steps: list[int]) -> None:
        """Decide beforehand which events are lost, evenly over the whole file."""
        wishes = [lost for lost in self.recording.lost if lost.rank == self.rank]
        self._chosen = {}
        for index, lost in enumerate(wishes):
            self._choose(lost, index, steps)

    def _choose(self, lost: Lost, index: int, steps: list[int]) -> None:
        assert self._chosen is not None
        key = Chance(self.job.seed).keys(f"lost {index}", 0, self.rank)
        least: list[tuple[int, int, int, int, int]] = []
        counter = 0
        for number in range(3):
            for step in steps:
                for place, piece in enumerate(self.text.pieces(self._active(step))):
                    section = piece.section(number)
                    if not section.count:
                        continue
                    keep = self._kept(section, piece, self._moments_of(piece, place, step))
                    eligible = self._eligible(section, keep, lost.what)
                    bits = Chance.hashes(key, counter + np.arange(len(eligible)))
                    counter += len(eligible)
                    if lost.fraction > 0:
                        gone = eligible[bits < np.uint64(int(lost.fraction * (2**64 - 1)))]
                        self._chosen.setdefault((number, step, place), set()).update(gone.tolist())
                    if lost.count:
                        for i in np.argsort(bits)[: lost.count].tolist():
                            entry = (-int(bits[i]), number, step, place, int(eligible[i]))
                            (heapq.heappush if len(least) < lost.count else heapq.heappushpop)(least, entry)
        for _, number, step, place, event in least:
            self._chosen.setdefault((number, step, place), set()).add(event)

    def _lose(
        self, section: Section, moments: I64, keep: Bool | None, step: int, place: int, number: int
    ) -> Bool | None:
        gone = sorted((self._chosen or {}).get((number, step, place), ()))
        if not gone:
            return keep
        keep = np.ones(section.count, dtype=np.bool_) if keep is None else keep.copy()
        keep[gone] = False
        flat = moments.ravel()
        for event in gone:
            self.lost.append(
                LostEvent(
                    self.rank,
                    self.engine.step_numbers[step],
                    RANK_MARK.sub(lambda m: self.replace[m[0]], section.names[event]),
                    LOSS_CLASSES[int(section.loses[event])],
                    self._ts(int(flat[section.start[event]])),
                )
            )
        return keep

    # --- ranges about several items ---

    def _ranges(self, step: int) -> str:
        """The annotations about several items of a step, and their echoes on the device."""
        texts = []
        base = self._bases(step)
        at = self._range_moments(step)
        for number, each in enumerate(self.text.program.ranges):
            begin, end = at[each.start], at[each.end]
            if not self.window.begin <= begin < self.window.end:
                continue
            name = each.name.replace("\x01s0\x01", str(base.step))
            if end > self.window.end:
                end = self.window.end
                if self.recording.rankscope_metadata:
                    # So does our own capture name the step that it was stopped in.
                    name = name.replace("ProfilerStep#", "PartialStep#")
            external = base.external + self.text.program.external_count + 2 * number
            texts.append(self._range(each, name, external, begin, end))
            if each.kernels is not None:
                first, last = at[each.kernels[0], DEVICE_START], at[each.kernels[1], DEVICE_END]
                if first >= self.window.begin and "PartialStep#" not in name:
                    # Kineto begins the echo 1 ns early and ends it 1 ns late.
                    echo = self._span(
                        "gpu_user_annotation", name, first - 1, last + 1, "", f'"External id": {external}'
                    )
                    texts.append(echo)
        self.events += len(texts)
        return "".join(texts)

    def _range_moments(self, step: int) -> dict[tuple[int, int], int]:
        """The moments between which a step's ranges lie, by (row, moment)."""
        program = self.text.program
        wanted = sorted({where for each in program.ranges for where in each.moments()})
        numbers = np.unique(program.item[[row for row, _ in wanted]]).tolist()
        items = [program.items[number] for number in numbers]
        rows = np.concatenate([np.arange(item.first, item.first + item.count) for item in items])
        moments = self.moments(rows, step)
        places = np.searchsorted(rows, [row for row, _ in wanted])
        found = moments[places, [moment for _, moment in wanted]].tolist()
        return dict(zip(wanted, found, strict=True))

    def steps_inside(self) -> tuple[int | None, int | None, int | None]:
        """The first and last whole ``ProfilerStep#`` of the window, and the one that it ends in."""
        row = next(each for each in self.text.program.ranges if each.name == PROFILER_STEP)
        whole, partial = [], None
        for step, number in enumerate(self.engine.step_numbers):
            at = self._range_moments(step)
            if self.window.begin <= at[row.start] < self.window.end:
                if at[row.end] <= self.window.end:
                    whole.append(number)
                else:
                    partial = number
        return (whole[0], whole[-1], partial) if whole else (None, None, partial)

    def _range(self, each: Range, name: str, external: int, begin: int, end: int) -> str:
        if each.category == "python_function":
            args = f'"Python parent id": null, "Python id": {external}, "Python module id": 0, "Ev Idx": {external}'
        else:
            args = f'"External id": {external},"Record function id": 0, "Ev Idx": {external - 1}'
        return self._span(each.category, name, begin, end, each.thread, args)

    def _span(self, category: str, name: str, begin: int, end: int, thread: str, args: str) -> str:
        pid = self.replace["\x02pid\x02"] if thread else self.replace["\x02device\x02"]
        tid = self.replace[f"\x02{thread}\x02"] if thread else str(COMPUTE_STREAM)
        length = self.clock.recorded(end) - self.clock.recorded(begin)
        return self.text.layout.span(category, name, pid, tid, self._ts(begin), microseconds(length), args)

    def _stop(self) -> str:
        """The profiler waits for the device before it stops."""
        begin = self.window.end
        correlation = FIRST_CORRELATION + self.engine.steps * (self.text.program.correlation_count + 8)
        self.events += 1
        return self._span(
            "cuda_runtime",
            "cudaDeviceSynchronize",
            begin,
            max(begin + 20_000, self._last_kernel + 5_000),
            "main",
            f'            "cbid": 165, "correlation": {correlation}',
        )

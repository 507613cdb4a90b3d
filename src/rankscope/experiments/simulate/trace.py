"""One rank's file: the job's events as the rank's clock and window record them, as Kineto's text.

In: the engine's results. Out: the chunks of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.experiments.simulate import header
from rankscope.experiments.simulate.calls import PROFILER_STEP
from rankscope.experiments.simulate.cells import (
    COMPUTE_STREAM,
    CORRELATION,
    DEVICE_AND_RUNTIME,
    DEVICE_END,
    DEVICE_START,
    EXTERNAL,
    HOST_MOMENTS,
    MAIN_HOST,
    MOMENTS,
    SECTIONS,
    Args,
)
from rankscope.experiments.simulate.clocks import Clock, Window
from rankscope.experiments.simulate.engine import Engine, Stage
from rankscope.experiments.simulate.events import LOSABLE_AS, EventTable, event_text, fill
from rankscope.experiments.simulate.identity import MAIN, RankIdentity
from rankscope.experiments.simulate.jitter import I64
from rankscope.experiments.simulate.kineto import Layout, Span, many_microseconds, microseconds
from rankscope.experiments.simulate.losses import LostEvent, Place, choose_lost
from rankscope.experiments.simulate.program import Range
from rankscope.experiments.simulate.times import Keys, Slowness, in_order

BATCH_ROWS = 1536
KEPT_ROWS = 24_576
"""Programs up to this long keep a rank's moments from section to section; longer ones compute them again."""

FIRST_CORRELATION = 40_000
_HOST_MOMENT = np.arange(MOMENTS) < HOST_MOMENTS


@dataclass(frozen=True)
class Batch:
    """The recorded events of one section of some rows of a step, in the file's order."""

    place: Place
    rows: I64
    moments: I64
    """(rows, moments), in true time."""
    row: I64
    """By event: the index of its row in ``rows``."""
    kind: I64
    """By event: its index in the stage's :class:`EventTable`."""


class RankTrace:
    """One rank's file."""

    def __init__(self, engine: Engine, stage: Stage, table: EventTable, rank: int) -> None:
        self.engine, self.stage, self.table = engine, stage, table
        self.job, self.program = engine.job, stage.program
        self.rank = RankIdentity.of(self.job, engine.layout, rank)
        self.layout = Layout(self.job.recording.layout)
        self.column = int(np.searchsorted(stage.ranks, rank))
        self.clock = Clock.of(self.job, rank)
        self.window = Window.of(engine, stage, rank)
        self.lost: list[LostEvent] = []
        self.events = 0
        self._texts = [event_text(event, self.rank, self.layout) for event in table.events]
        self._last_kernel = 0
        self._kept: dict[tuple[int, int], I64] | None = {} if len(self.program.rows) <= KEPT_ROWS else None

    # --- when ---

    def _drawn_by(self, step: int) -> tuple[Keys, Slowness]:
        slow = self.engine.slowness(self.stage, step)
        c = slice(self.column, self.column + 1)
        one = Slowness(slow.host[c], slow.kernel[c], slow.loader[c])
        return self.stage.clockwork.keys(step, self.stage.ranks[c]), one

    def moments(self, rows: I64, step: int) -> I64:
        """(rows, moments) in true time; ``rows`` are complete items in order."""
        stage, program, column = self.stage, self.program, self.column
        keys, slow = self._drawn_by(step)
        spans = stage.clockwork.host_spans(rows, keys, slow)[0]
        ends = np.cumsum(spans.ravel()).reshape(spans.shape)
        items = program.item[rows]
        new = np.flatnonzero(np.diff(items, prepend=-1))
        before = np.repeat((ends - spans)[new, 0], np.diff(new, append=len(rows)))
        times = np.empty((len(rows), MOMENTS), dtype=np.int64)
        host = times[:, :HOST_MOMENTS]
        host[:] = ends - before[:, None] + stage.host[step, items, column][:, None]
        table = stage.clockwork.table(rows)
        works = table.kernel_ns > 0
        durations = stage.clockwork.kernels(rows, keys, slow)[0]
        launched = stage.clockwork.launched(rows, host[None])[0]
        launched = np.maximum(launched, stage.stream[step, items, column])
        times[:, DEVICE_START], _ = in_order(launched, durations, works)
        times[:, DEVICE_END] = times[:, DEVICE_START] + durations
        times[~works, DEVICE_START:] = 0
        for index in new.tolist():
            item = program.items[int(items[index])]
            if item.kind == "communication":
                times[index, DEVICE_START] = stage.arrival[step, item.communication, column]
                times[index, DEVICE_END] = stage.end[step, item.communication, column]
            elif item.kind == "synchronize":
                last = index + item.count - 1
                delay = stage.host[step, items[index] + 1, column] - host[last, -1]
                host[last, table.waits_at[last] :] += delay
        return times

    def _reaches(self, step: int) -> bool:
        """Whether anything of a step can be in the window."""
        stage, c = self.stage, self.column
        last = max(int(stage.host[step, -1, c]), int(stage.end[step, :, c].max(initial=0)))
        last = max(
            last, int(stage.stream[min(step + 1, self.engine.steps - 1), 0 if step + 1 < self.engine.steps else -1, c])
        )
        return last >= self.window.begin and int(stage.host[step, 0, c]) < self.window.end

    def _ts(self, true_ns: int) -> str:
        return microseconds(self.clock.recorded(true_ns) - self.clock.base_ns)

    def _dur(self, begin: int, end: int) -> str:
        return microseconds(self.clock.recorded(end) - self.clock.recorded(begin))

    # --- what ---

    def chunks(self, file_name: str) -> Iterator[bytes]:
        """The file's text."""
        begin, end = self.window.begin, self.window.end
        names = self.layout.events(header.names(self.job, self.rank, self._streams(), self._ts(begin)))
        metadata = header.rankscope_metadata(self.job, self.rank, self.clock.recorded(begin), self.steps_inside())
        yield self.layout.head(
            header.device_properties(self.job), header.metadata(self.job, self.rank, metadata), self.clock.base_ns
        )
        if self.layout.names_first:
            yield names
        steps = [step for step in range(self.engine.steps) if self._reaches(step)]
        lost = self._choose_lost(steps)
        for section in SECTIONS:
            for step in steps:
                for batch in self._batches(section, step):
                    texts = self._cell_events(batch, step, lost.get(batch.place, set()))
                    self.events += len(texts)
                    yield "".join(texts).encode()
                if section == MAIN_HOST:
                    yield self._text(self._ranges(step))
        yield self._text([self._stop()])
        if not self.layout.names_first:
            yield names
        last = self._ts(max(end, self._last_kernel) + 200_000)
        yield self.layout.foot(self._ts(begin), self._dur(begin, end), last, file_name)

    def _text(self, events: Sequence[Span]) -> bytes:
        self.events += len(events)
        return self.layout.events(events)

    def _streams(self) -> set[int]:
        return {COMPUTE_STREAM, *(c.message.stream for c in self.program.communications)}

    def _rows(self, step: int) -> Iterator[I64]:
        """The rows that the rank runs in a step, some items at a time."""
        active = self.stage.effects.active[:, step, self.column]
        rows: list[I64] = []
        count = 0
        for item in self.program.items:
            if item.fault >= 0 and not active[item.fault]:
                continue
            rows.append(np.arange(item.first, item.first + item.count))
            count += item.count
            if count >= BATCH_ROWS:
                yield np.concatenate(rows)
                rows, count = [], 0
        if rows:
            yield np.concatenate(rows)

    def _batches(self, section: int, step: int) -> Iterator[Batch]:
        """The events of one section of a step that are recorded.

        A host event counts by its start. Device work counts if it runs after the beginning and was launched before the
        end: the profiler waits for the device when it stops.
        """
        begin, end = self.window.begin, self.window.end
        for number, rows in enumerate(self._rows(step)):
            kind, row = self.table.of(section, self.program.cell[rows])
            if not len(kind):
                continue
            moments = self._kept.get((step, number)) if self._kept is not None else None
            if moments is None:
                moments = self.moments(rows, step)
                if self._kept is not None:
                    self._kept[step, number] = moments
            launch = np.maximum(self.stage.clockwork.table(rows).launch_at - 1, 0)
            launched = moments[np.arange(len(rows)), launch][row]
            start, device_start = moments[row, self.table.start[kind]], moments[row, DEVICE_START]
            on_device = self.table.on_device[kind]
            kept = np.where(on_device, (device_start >= begin) & (launched < end), (start >= begin) & (start < end))
            yield Batch((section, step, number), rows, moments, row[kept], kind[kept])

    def _cell_events(self, batch: Batch, step: int, lost: set[int]) -> list[str]:
        """The text of a batch's events, without those that are lost."""
        row, kind, table = batch.row, batch.kind, self.table
        if batch.place[0] == DEVICE_AND_RUNTIME:
            last = batch.moments[row, DEVICE_END][table.on_device[kind]].max(initial=0)
            self._last_kernel = max(self._last_kernel, int(last))
        # Host events that are running when the recording ends are cut there.
        moments = np.where(_HOST_MOMENT, np.minimum(batch.moments, self.window.end), batch.moments)
        recorded = self.clock.recorded_many(moments) - self.clock.base_ns
        ts = recorded[row, table.start[kind]]
        dur = recorded[row, table.end[kind]] - ts
        ids = self.program.ids[batch.rows][row] + self._first_ids(step)
        events, starts = [self._texts[k] for k in kind.tolist()], many_microseconds(ts)
        texts = fill(events, starts, many_microseconds(dur), ids.T.tolist())
        for index in sorted(lost):
            as_what = LOSABLE_AS[int(table.lost_as[kind[index]])]
            number = self.engine.step_numbers[step]
            self.lost.append(LostEvent(self.rank.rank, number, events[index].name, as_what, starts[index]))
        return [text for index, text in enumerate(texts) if index not in lost] if lost else texts

    def _first_ids(self, step: int) -> list[int]:
        """The first id of each counter in a step."""
        external, correlation, _ = self.program.id_counts
        return [
            1 + step * (external + 2 * len(self.program.ranges) + 8),
            FIRST_CORRELATION + step * (correlation + 8),
            1 + step * self.engine.sequences_per_step,
        ]

    def _choose_lost(self, steps: list[int]) -> dict[Place, set[int]]:
        def outline() -> Iterator[tuple[Place, I64]]:
            for section in SECTIONS:
                for step in steps:
                    for batch in self._batches(section, step):
                        yield batch.place, self.table.lost_as[batch.kind]

        rank = self.rank.rank
        wishes = [lost for lost in self.job.recording.lost if lost.rank == rank]
        return choose_lost(wishes, rank, self.job.seed, outline)

    # --- ranges around several items ---

    def _ranges(self, step: int) -> list[Span]:
        """The annotations around several items of a step, and their copies on the device."""
        spans = []
        at = self._range_moments(step)
        first_external = self._first_ids(step)[EXTERNAL] + self.program.id_counts[EXTERNAL]
        for number, range_ in enumerate(self.program.ranges):
            begin, end = at[range_.start], at[range_.end]
            if not self.window.begin <= begin < self.window.end:
                continue
            name = f"{range_.name}{self.engine.step_numbers[step]}" if range_.name == PROFILER_STEP else range_.name
            partial = range_.name == PROFILER_STEP and end > self.window.end and self.job.recording.rankscope_metadata
            if partial:
                # rankscope's capture gives this name to the step in which it was stopped.
                name = name.replace("ProfilerStep#", "PartialStep#")
            external = first_external + 2 * number
            spans.append(self._range(range_, name, external, begin, min(end, self.window.end)))
            if range_.kernels is not None and not partial:
                first, last = at[range_.kernels[0], DEVICE_START], at[range_.kernels[1], DEVICE_END]
                if first >= self.window.begin:
                    # Kineto starts the copy 1 ns early and ends it 1 ns late.
                    args: Args = {"External id": external}
                    spans.append(self._span("gpu_user_annotation", name, first - 1, last + 1, args))
        return spans

    def _range_moments(self, step: int) -> dict[tuple[int, int], int]:
        """The true times at which a step's ranges begin and end, by (row, moment)."""
        program = self.program
        wanted = sorted({key for range_ in program.ranges for key in range_.moments()})
        numbers = np.unique(program.item[[row for row, _ in wanted]]).tolist()
        items = [program.items[number] for number in numbers]
        rows = np.concatenate([np.arange(item.first, item.first + item.count) for item in items])
        moments = self.moments(rows, step)
        positions = np.searchsorted(rows, [row for row, _ in wanted])
        times = moments[positions, [moment for _, moment in wanted]].tolist()
        return dict(zip(wanted, times, strict=True))

    def steps_inside(self) -> tuple[int | None, int | None, int | None]:
        """The first and last complete ``ProfilerStep#`` of the window, and the step in which the window ends."""
        row = next(range_ for range_ in self.program.ranges if range_.name == PROFILER_STEP)
        complete, partial = [], None
        for step, number in enumerate(self.engine.step_numbers):
            at = self._range_moments(step)
            if self.window.begin <= at[row.start] < self.window.end:
                if at[row.end] <= self.window.end:
                    complete.append(number)
                else:
                    partial = number
        return (complete[0], complete[-1], partial) if complete else (None, None, partial)

    def _range(self, range_: Range, name: str, external: int, begin: int, end: int) -> Span:
        args: Args = {"External id": external, "Record function id": 0, "Ev Idx": external - 1}
        if range_.category == "python_function":
            args = {"Python parent id": None, "Python id": external, "Python module id": 0, "Ev Idx": external}
        return self._span(range_.category, name, begin, end, args, range_.thread)

    def _span(self, category: str, name: str, begin: int, end: int, args: Args, thread: str = "") -> Span:
        """A range on a thread of the host, or on the compute stream."""
        pid, tid = (self.rank.pid, self.rank.thread(thread)) if thread else (self.rank.device, COMPUTE_STREAM)
        return Span(category, name, pid, tid, self._ts(begin), self._dur(begin, end), args)

    def _stop(self) -> Span:
        """The event of the profiler's wait for the device before it stops."""
        begin = self.window.end
        correlation = self._first_ids(self.engine.steps)[CORRELATION]
        end = max(begin + 20_000, self._last_kernel + 5_000)
        args: Args = {"cbid": 165, "correlation": correlation}
        return self._span("cuda_runtime", "cudaDeviceSynchronize", begin, end, args, MAIN)

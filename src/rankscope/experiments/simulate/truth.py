"""The truth of a simulated job, written next to the traces, to compare the results of analyses with.

All times are the job's true time in nanoseconds from 0; a rank recorded ``epoch_ns + t + offset_ns + t * drift_ppb //
10**9``, and its file has that minus ``base_ns``, in microseconds.

In: the engine's results. Out: JSON files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.experiments.simulate.clocks import EPOCH_NS, Clock, Window
from rankscope.experiments.simulate.engine import Engine, Stage
from rankscope.experiments.simulate.faults import Nominal
from rankscope.experiments.simulate.identity import host_of, run_id
from rankscope.experiments.simulate.jitter import I64, KERNEL_GAP_NS, MEASURED
from rankscope.experiments.simulate.job import as_dict
from rankscope.experiments.simulate.losses import LostEvent
from rankscope.experiments.simulate.mesh import WORLD

TRUTH_FILE = "truth.json"
TRUTH_FOLDER = "truth"
SCHEMA = "rankscope.simulate.truth/1"
ROWS_IN_ONE_FILE = 100_000
"""Above this many (collective, rank) rows, there is one file per rank."""

COLUMNS = (
    "step",
    "group",
    "collective",
    "sequence",
    "stream",
    "dtype",
    "in_elements",
    "out_elements",
    "bytes",
    "peer",
    "arrival_ns",
    "end_ns",
    "transfer_ns",
    "wait_ns",
)


@dataclass(frozen=True)
class Truth:
    """The truth of one simulated job."""

    engine: Engine = field(repr=False)
    nominal: Nominal
    step_ns: tuple[int, ...]
    """By recorded step: its duration, from the end of the step before to its own end, on the slowest rank."""
    fault_cost_ns: tuple[int, ...] = ()
    """By fault: the mean step with all faults minus that of the same seed without this one; empty if not computed."""
    alone_cost_ns: tuple[int, ...] = ()
    """By fault: the mean step with only this fault minus that of the same seed without any. Of two faults on different
    ranks the smaller can be hidden by the larger: together it costs nothing, alone it does."""
    clean_step_ns: tuple[int, ...] = ()
    """``step_ns`` of the same seed without any fault; empty if not computed."""
    lost: tuple[LostEvent, ...] = ()
    files: dict[int, str] = field(default_factory=dict)
    """By rank: the file's path in the run directory, with ``/`` between folders."""
    json_bytes: dict[int, int] = field(default_factory=dict)
    """By rank: the size before compression, and before a cut."""
    events: dict[int, int] = field(default_factory=dict)
    """By rank: complete, flow and other events, without the names of threads."""

    @property
    def nominal_step_ns(self) -> int:
        """The undisturbed step without jitter, to which magnitudes refer."""
        return self.nominal.step_ns

    def stage_of(self, rank: int) -> tuple[Stage, int]:
        """A rank's stage and its index in the arrays of the stage."""
        stage = self.engine.stages[self.engine.layout.stage_of(rank)]
        return stage, int(np.searchsorted(stage.ranks, rank))

    def steps(self, rank: int) -> list[dict[str, int]]:
        """When a rank began and ended each recorded step, on the host and on the device."""
        stage, column = self.stage_of(rank)
        done = completions(stage)
        first = self.engine.job.warmup_steps
        return [
            {
                "step": self.engine.step_numbers[s],
                "start_ns": int(stage.host[s, 0, column]),
                "end_ns": int(stage.host[s, -1, column]),
                "completed_ns": int(done[s, column]),
            }
            for s in range(first, first + self.engine.job.steps)
        ]

    def collectives(self, rank: int) -> dict[str, list[Any]]:
        """Every collective of a rank, recorded or not, as columns; ``peer`` is null except for send and recv."""
        stage, column = self.stage_of(rank)
        job, layout = self.engine.job, self.engine.layout
        groups = layout.groups_of(rank, shared_names=job.recording.group_names == "shared")
        pipeline = groups["pp"].ranks if "pp" in groups else (rank,)
        position = pipeline.index(rank)
        per_step = [c.message for c in stage.program.communications]
        sequences = [c.sequence for c in stage.program.communications]
        stride = self.engine.sequences_per_step
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for step in range(self.engine.steps):
            for index, message in enumerate(per_step):
                arrival, end = int(stage.arrival[step, index, column]), int(stage.end[step, index, column])
                transfer = int(stage.transfer[step, index, column])
                peer = pipeline[position + message.to_next] if message.kind in ("send", "recv") else None
                row = (
                    self.engine.step_numbers[step],
                    groups[message.dim].name,
                    message.kind,
                    step * stride + sequences[index] + 1,
                    message.stream,
                    message.dtype,
                    message.in_elements,
                    message.out_elements,
                    message.bytes,
                    peer,
                    arrival,
                    end,
                    transfer,
                    int(stage.last[step, index, column]) - arrival,  # the last arrival of its group
                )
                for name, value in zip(COLUMNS, row, strict=True):
                    columns[name].append(value)
        return columns

    def ranks(self) -> Iterator[dict[str, Any]]:
        """A description of each rank."""
        engine, job = self.engine, self.engine.job
        for rank in range(job.ranks):
            stage, _ = self.stage_of(rank)
            clock, window = Clock.of(job, rank), Window.of(engine, stage, rank)
            yield {
                "rank": rank,
                "host": host_of(job, rank),
                "coordinate": dict(zip(engine.layout.dims, engine.layout.coordinate(rank), strict=True)),
                "file": self.files.get(rank),
                "json_bytes": self.json_bytes.get(rank),
                "events": self.events.get(rank),
                "offset_ns": clock.offset_ns,
                "drift_ppb": clock.drift_ppb,
                "base_ns": clock.base_ns,
                "window_begin_ns": window.begin,
                "window_end_ns": window.end,
                "steps": self.steps(rank),
            }

    def to_json(self, *, collectives: bool) -> dict[str, Any]:
        """The content of the file; ``collectives``: with every collective of every rank."""
        engine, job = self.engine, self.engine.job
        unknown = [None] * len(job.faults)
        groups = {
            (group.name, group.description, group.ranks)
            for rank in range(job.ranks)
            for group in engine.layout.groups_of(rank, shared_names=job.recording.group_names == "shared").values()
            if len(group.ranks) > 1 or group.dim == WORLD
        }
        return {
            "schema": SCHEMA,
            "run_id": run_id(job),
            "epoch_ns": EPOCH_NS,
            "job": as_dict(job),
            "jitter": {name: {"source": source, "of": of} for name, (source, of, _) in MEASURED.items()},
            "nominal_step_ns": self.nominal.step_ns,
            "step_ns": list(self.step_ns),
            "clean_step_ns": list(self.clean_step_ns),
            "faults": [
                {**asdict(fault), "taken_ns": self.nominal.taken_ns(fault), "cost_ns": cost, "alone_cost_ns": alone}
                for fault, cost, alone in zip(
                    job.faults, self.fault_cost_ns or unknown, self.alone_cost_ns or unknown, strict=True
                )
            ],
            "groups": [
                {"name": name, "description": description, "ranks": list(ranks)}
                for name, description, ranks in sorted(groups, key=lambda g: (g[1], g[2]))
            ],
            "ranks": list(self.ranks()),
            "lost": [asdict(event) for event in self.lost],
            "collectives": {str(r): self.collectives(r) for r in range(job.ranks)} if collectives else None,
        }

    def write(self, out: Path) -> None:
        """Write ``truth.json``, and ``truth/rank*.json`` if there are many collectives."""
        engine = self.engine
        rows = sum(stage.arrival.size for stage in engine.stages)
        together = rows <= ROWS_IN_ONE_FILE
        (out / TRUTH_FILE).write_text(json.dumps(self.to_json(collectives=together)), encoding="utf-8")
        if not together:
            (out / TRUTH_FOLDER).mkdir(exist_ok=True)
            for rank in range(engine.job.ranks):
                text = json.dumps({"schema": SCHEMA, "rank": rank, "collectives": self.collectives(rank)})
                (out / TRUTH_FOLDER / f"rank{rank}.json").write_text(text, encoding="utf-8")


def completions(stage: Stage) -> I64:
    """(steps, ranks): when host and device had finished a step."""
    following = np.concatenate([stage.stream[1:, 0], stage.stream[-1:, -1]]) - KERNEL_GAP_NS
    done = np.maximum(stage.host[:, -1], following)
    if stage.end.shape[1]:
        done = np.maximum(done, stage.end.max(axis=1))
    return np.asarray(done, dtype=np.int64)


def step_times(engine: Engine) -> tuple[int, ...]:
    """By recorded step: its duration, from the end of the step before to its own end, on the slowest rank."""
    done = np.max([completions(stage).max(axis=1) for stage in engine.stages], axis=0)
    begin = min(int(stage.host[0, 0].min()) for stage in engine.stages)
    lengths = np.diff(done, prepend=begin)
    first = engine.job.warmup_steps
    return tuple(int(n) for n in lengths[first : first + engine.job.steps])

"""What the straggler engine reads of many runs, kept, so that a change of the engine is scored in a minute.

A record is one pickle: what `per_rank` of `stragglers` gave for each rank, the inputs of `across_ranks`, and the
faults; the other parts write them to `records` under `--keep`. `ablation` scores them once for each variant.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import polars as pl

import rankscope
from benchmarks.diagnosis.scoring import Case, Done, Said, said_of
from rankscope.analyses import get_analysis
from rankscope.analyses import stragglers as analysis
from rankscope.primitives.mesh import mesh_slices
from rankscope.primitives.stragglers import stragglers
from rankscope.primitives.stragglers.observations import Observations
from rankscope.results import Inputs, Options, Part


@dataclass(frozen=True)
class Record:
    """A run as the engine reads it.

    Attributes:
        name: of the case.
        done: its faults.
        note: what else to say of it.
        steps: how many were recorded.
        parts: what `per_rank` gave, by rank.
        inputs: of `across_ranks`.
        recorded: of a perturbed real run, its record without the perturbation.
    """

    name: str
    done: tuple[Done, ...]
    note: str
    steps: int
    parts: tuple[Part, ...]
    inputs: Inputs
    recorded: str = ""


def record_of_run(run: rankscope.Run, name: str, done: tuple[Done, ...], note: str = "", steps: int = 0) -> Record:
    """The record of an opened run."""
    known = {"collectives": run.collectives(), "clock": run.clock()}
    stragglers = get_analysis("stragglers")
    parts = []
    for rank, traces in sorted(run.loaded.ranks.items()):
        tables = {
            table: pl.concat(
                [
                    trace.load(table, list(columns)).with_columns(pl.lit(number, pl.Int16).alias("window"))
                    for number, trace in enumerate(traces)
                ]
            )
            for table, columns in stragglers.reads.items()
        }
        infos = tuple(info for info in run.loaded.infos if info.rank == rank)
        parts.append(stragglers.per_rank(tables, Inputs(Options(), infos, known, rank, run.world_size)))
    inputs = Inputs(Options(), tuple(run.loaded.infos), known, -1, run.world_size)
    return Record(name, done, note, steps, tuple(parts), inputs)


def keep(record: Record, folder: Path) -> None:
    """Write a record."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record.name.replace('/', '_').replace(' ', '_')}.pickle").write_bytes(pickle.dumps(record))


def read(folder: Path) -> Iterator[Record]:
    """The records of a folder, in the order of their names."""
    for path in sorted(folder.rglob("*.pickle")):
        yield pickle.loads(path.read_bytes())


@dataclass(frozen=True)
class Prepared:
    """What remains to be judged of a record: the times of all ranks and steps.

    Attributes:
        record: the record.
        seen: its observations; None where ranks cannot be compared.
        slices: of its mesh.
        networks: its findings about networks, which no variant changes.
    """

    record: Record
    seen: Observations | None
    slices: tuple[tuple[str, frozenset[int]], ...]
    networks: tuple[Said, ...]

    @classmethod
    def of(cls, record: Record) -> Prepared:
        """Prepare one."""
        seen: list[Observations] = []

        def comparison(observations: Observations) -> stragglers.Comparison:
            seen.append(observations)
            return stragglers.Comparison(observations)

        with patch.object(analysis, "Comparison", comparison):
            findings = get_analysis("stragglers").reduce(record.parts, record.inputs)[1]
        networks = said_of([each for each in findings if each.id == "slow-network"])
        return cls(record, seen[0] if seen else None, tuple(mesh_slices(analysis.mesh_of(record.inputs))), networks)

    def said(self) -> tuple[Said, ...]:
        """The findings."""
        if self.seen is None:
            return self.networks
        compared = stragglers.Comparison(self.seen)
        found = [
            Said(frozenset(each.ranks), each.cause.cause, 0 if each.once else each.saving_ns, each.once)
            for each in compared.by_slice(compared.stragglers(), self.slices)
        ]
        return tuple(sorted([*found, *self.networks], key=lambda each: -each.saving_ns))


def scores(records: Iterable[Prepared]) -> list[Case]:
    """The cases of all records; of perturbed ones those of ranks that are not late as recorded."""
    every = [(each.record, each.said()) for each in records]
    base = {record.name: said for record, said in every if not record.done and record.recorded == record.name}
    found = []
    for record, said in every:
        known = base.get(record.recorded, ())
        late = {rank for each in known for rank in each.ranks if each.cause != "slow_network"}
        if record.recorded != record.name and not any(done.ranks & late for done in record.done):
            ranks = [each.ranks for each in known]
            new = tuple(each for each in said if each.ranks not in ranks)
            found.append(Case(record.name, record.done, new, record.note, steps=record.steps))
    return found

"""What the straggler engine reads of many runs, kept, so that a change of the engine is scored in a minute.

A record is one pickle: what `per_rank` of `stragglers` gave for each rank, the inputs of `across_ranks`, and the
faults; the other parts write them to `records` under `--keep`. `ablation` scores them once for each variant.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl

import rankscope
from benchmarks.diagnosis.scoring import Case, Done, Said, said_of
from rankscope.analyses import get_analysis
from rankscope.analyses import stragglers as analysis
from rankscope.primitives.stragglers import stragglers
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import excess_over_peers
from rankscope.results import Inputs, Options, Part

FEW = 4
"""Values of other ranks; from fewer, random variation is not known."""


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
    known = {"collectives": run.collectives(), "clock": run.clock(), "segments": run.segments()}
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


def said(record: Record) -> tuple[Said, ...]:
    """The findings: of the whole analysis, as late ranks are judged by what they gain in the replay, too."""
    return said_of(get_analysis("stragglers").reduce(record.parts, record.inputs)[1])


def observed(record: Record) -> Observations | None:
    """The times of all ranks and steps; None where ranks cannot be compared."""
    seen: list[Observations] = []

    def comparison(observations: Observations) -> stragglers.Comparison:
        seen.append(observations)
        return stragglers.Comparison(observations)

    with patch.object(analysis, "Comparison", comparison):
        said(record)
    return seen[0] if seen else None


def standard_error(seen: Observations, struck: Sequence[int], steps: int) -> float:
    """The standard error of a mean of ``steps`` steps' local time, as a share of a step: what chance alone moves it by.

    A step varies by the root mean square of the excesses of the ranks that nothing was done to; of two ranks, and where
    ranks have no peers, by that of each rank's excess about its own median.
    """
    local = np.where(seen.known, seen.local, np.nan)
    out = np.isin(seen.ranks, struck)
    excess = excess_over_peers(local, seen.role, out)[~out]
    if np.isfinite(excess).sum() < FEW:
        excess = local if seen.alone.all() else local - np.nanmedian(local, axis=0)
        excess = excess - np.nanmedian(excess, axis=1, keepdims=True)
    return float(np.sqrt(np.nanmean(excess**2) / steps) / seen.step_ns)


def with_errors(record: Record) -> tuple[Done, ...]:
    """A simulated run's faults with their standard errors; without for networks, whose transfers are judged."""
    seen = observed(record)
    struck = sorted(set().union(*(each.ranks for each in record.done)))
    if seen is None or not seen.enough:
        return record.done
    return tuple(
        each
        if "slow_network" in each.causes
        else replace(each, error=standard_error(seen, struck, min(int(each.when.split()[0]), seen.steps.size)))
        for each in record.done
    )


def scores(records: Sequence[Record], findings: Sequence[tuple[Said, ...]]) -> list[Case]:
    """The cases of records with their findings; of perturbed ones those of ranks that are not late as recorded."""
    every = list(zip(records, findings, strict=True))
    base = {record.name: known for record, known in every if not record.done and record.recorded == record.name}
    found = []
    for record, of_record in every:
        known = base.get(record.recorded, ())
        late = {rank for each in known for rank in each.ranks if each.cause != "slow_network"}
        if record.recorded != record.name and not any(done.ranks & late for done in record.done):
            ranks = [each.ranks for each in known]
            new = tuple(each for each in of_record if each.ranks not in ranks)
            found.append(Case(record.name, record.done, new, record.note, steps=record.steps))
    return found

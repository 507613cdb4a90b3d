"""Real traces in which one rank is made slower; `retiming` computes the consequences."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import polars as pl

import rankscope
from benchmarks.diagnosis.replay import Record
from benchmarks.diagnosis.replay import keep as keep_record
from benchmarks.diagnosis.retiming import Rank, Retiming, Slower, Tables, lengths
from benchmarks.diagnosis.scoring import Case, Done, Said, said_of
from rankscope.analyses import get_analysis
from rankscope.results import Finding, Inputs, Options, Part

SETS = (
    "modded-nanogpt-h100-8ranks",
    "torchrec/all-to-all-4ranks",
    "torchrec/rank2-sleeps-4ranks",
    "torchrec/ddp-resnet18-2ranks",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks",
    "gloo-2ranks/ddp_gpt_minimal",
    "gloo-2ranks/ddp_gpt_shapes",
    "gloo-2ranks/ddp_gpt_straggler_rank1",
    "gloo-2ranks/fsdp2_gpt_shapes",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem",
    "gloo-2ranks/fsdp2_gpt_straggler_rank1",
)
# The total slowdown of a rank, as a share of a step.
MAGNITUDES = (0.03, 0.06, 0.12, 0.25, 0.5)


@dataclass(frozen=True)
class Recorded:
    """A real run: its tables, and its findings as recorded."""

    name: str
    inputs: Inputs
    tables: dict[int, Tables]
    retiming: Retiming
    said: tuple[Said, ...]
    steps: int
    length: int


def load(traces: Path, name: str) -> Recorded:
    """A set of traces, and the engine that recomputes its times."""
    folder = traces / name
    files = folder if folder.is_dir() else sorted(folder.parent.glob(f"{folder.name}.rank*"))
    run = rankscope.open(files, executor="serial")
    collectives, clock = run.collectives(), run.clock()
    wanted: dict[str, set[str]] = {}
    for analysis in ("collectives", "stragglers"):
        for table, columns in get_analysis(analysis).reads.items():
            wanted.setdefault(table, set()).update(columns)
    tables = {
        rank: {
            table: found[0].load(table, sorted(columns)).with_columns(pl.lit(0, pl.Int16).alias("window"))
            for table, columns in wanted.items()
        }
        for rank, found in run.loaded.ranks.items()
    }
    offset = dict(clock.select("rank", "offset_ns").iter_rows())
    base = {info.rank: info.base_time_ns for info in run.loaded.infos if info.rank is not None}
    least = min(base.values())
    shift = {rank: base[rank] - least + offset[rank] for rank in tables}
    inputs = Inputs(Options(), tuple(run.loaded.infos), {}, -1, run.world_size)
    again = Retiming(tables, collectives, shift)
    unchanged = again.run()
    findings = ask(unchanged, inputs)
    steps = max(int(collectives["step"].n_unique()) - int(collectives["step"].null_count() > 0), 1)
    return Recorded(name, inputs, tables, again, said_of(findings), steps, lengths([*unchanged.values()]))


def ask(tables: dict[int, Tables], inputs: Inputs) -> list[Finding]:
    """The findings of `stragglers`, from the tables of all ranks."""
    return get_analysis("stragglers").reduce(*observed(tables, inputs))[1]


def observed(tables: dict[int, Tables], inputs: Inputs) -> tuple[list[Part], Inputs]:
    """What `stragglers` reads of all ranks: what `per_rank` gives, and the inputs of `across_ranks`."""
    known: dict[str, pl.DataFrame] = {}

    def mapped(name: str) -> list[Part]:
        return [
            get_analysis(name).per_rank(
                {table: each[table] for table in get_analysis(name).reads},
                Inputs(
                    inputs.options,
                    tuple(info for info in inputs.traces if info.rank == rank),
                    {n: f.filter(pl.col("rank") == rank) for n, f in known.items()},
                    rank,
                    inputs.world_size,
                ),
            )
            for rank, each in sorted(tables.items())
        ]

    def reduced(name: str, parts: list[Part]) -> tuple[pl.DataFrame, list[Finding]]:
        return get_analysis(name).reduce(
            parts, Inputs(inputs.options, inputs.traces, dict(known), -1, inputs.world_size)
        )

    known["collectives"] = reduced("collectives", mapped("collectives"))[0]
    known["clock"] = reduced("clock", [])[0]
    known["segments"] = reduced("segments", mapped("segments"))[0]
    return mapped("stragglers"), Inputs(inputs.options, inputs.traces, dict(known), -1, inputs.world_size)


def trials(recorded: Recorded, seed: int | None = None) -> Iterator[tuple[Slower, str, float]]:
    """All perturbations: every rank that is not late already, every kind, every magnitude.

    Args:
        recorded: the set.
        seed: each magnitude is moved by up to half an octave, drawn by this; None: by nothing.
    """
    draw = random.Random(f"{seed} {recorded.name}")
    late = {rank for said in recorded.said for rank in said.ranks if said.cause != "slow_network"}
    for rank, each in recorded.retiming.ranks.items():
        if rank in late:
            continue
        step = lengths([recorded.tables[rank]]) / recorded.steps
        work = _working(each) / recorded.steps
        calls = max(each.launches.size / recorded.steps, 1)
        for usual in MAGNITUDES:
            host, launches, device = (usual if seed is None else usual * 2 ** draw.uniform(-0.5, 0.5) for _ in range(3))
            yield Slower(rank, host=host), "host stretched", host
            yield Slower(rank, launch_ns=round(launches * step / calls)), "launches delayed", launches
            if each.on_device and work > 0:
                yield Slower(rank, kernels=device * step / work), "kernels stretched", device


def _working(each: Rank) -> int:
    return int((each.end - each.start)[each.compute].sum())


def case_of(recorded: Recorded, slower: Slower, kind: str, magnitude: float, records: Path | None = None) -> Case:
    """One perturbation, and its findings beyond those of the run as recorded."""
    begun = time.process_time()
    tables = recorded.retiming.run(slower)
    cost = (lengths([*tables.values()]) - recorded.length) / recorded.length
    parts, inputs = observed(tables, recorded.inputs)
    said = said_of(get_analysis("stragglers").reduce(parts, inputs)[1])
    known = [each.ranks for each in recorded.said]
    new = tuple(each for each in said if each.ranks not in known)
    causes = ("slow_device",) if slower.kernels else ("slow_host",)
    done = Done(frozenset([slower.rank]), causes, cost, kind)
    name = f"{recorded.name} rank {slower.rank} {kind} {magnitude:.1%}"
    if records is not None:
        keep_record(Record(name, (done,), "", recorded.steps, tuple(parts), inputs, recorded.name), records)
    return Case(name, (done,), new, f"as recorded: {len(recorded.said)}", time.process_time() - begun)


def cases_of(traces: Path, name: str, keep: Path, seed: int | None = None) -> list[Case]:
    """All trials of a set."""
    os.environ["RANKSCOPE_CACHE"] = str(keep / "cache")
    recorded = load(traces, name)
    records = keep / "records"
    parts, inputs = observed(recorded.retiming.run(), recorded.inputs)
    keep_record(Record(name, (), "", recorded.steps, tuple(parts), inputs, name), records)
    return [case_of(recorded, slower, kind, magnitude, records) for slower, kind, magnitude in trials(recorded, seed)]


def run_sets(
    traces: Path, keep: Path, workers: int = 2, sets: Sequence[str] = SETS, seed: int | None = None
) -> Iterator[Case]:
    """All trials of some sets, as the sets finish."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(cases_of, traces, name, keep, seed) for name in sets]):
            yield from future.result()

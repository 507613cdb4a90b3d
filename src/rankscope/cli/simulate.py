"""`rankscope simulate`: traces of any size with known truth.

In: the size of a job and its faults. Out: a run directory with traces and the truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.rundir.fields import MAX_RANKS
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import parse_numbers

if TYPE_CHECKING:
    from rankscope.experiments.simulate import Job, Lost, Recording, Truth, Written

T = TypeVar("T", int, float)

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_TIMES = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60 * 10**9, "h": 3600 * 10**9}
_SIZES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class JobOptions:
    """The job to simulate."""

    ranks: Annotated[int, typer.Option(help="How many ranks.")] = 8
    steps: Annotated[int, typer.Option(help="How many recorded steps.")] = 4
    mesh: Annotated[str, typer.Option(help="Sizes of dp, tp, pp, ep, outermost first: dp=64,tp=8,pp=2.")] = ""
    fault: Annotated[
        list[str] | None,
        typer.Option(help="kind:key=value,… for example slow_device:rank=3,magnitude=0.05. Can be repeated."),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0
    layers: Annotated[int, typer.Option(help="Layers per pipeline stage.")] = 4
    kernels_per_layer: Annotated[int, typer.Option(help="Kernels in a layer's forward pass.")] = 8
    microbatches: Annotated[int, typer.Option(help="Microbatches per step. 0: twice the pipeline's depth.")] = 0
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Shard parameters instead of all-reducing gradients.")] = False
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="all_gather and reduce_scatter along tp.")
    ] = False
    sync: Annotated[bool, typer.Option(help="Read the loss every step; else the host runs ahead.")] = True
    device_scale: Annotated[float, typer.Option(help="Stretch kernels: below 1 the host bounds the step.")] = 1.0
    host_scale: Annotated[float, typer.Option(help="Stretch the host's work.")] = 1.0
    jitter: Annotated[float, typer.Option(help="Widen (or narrow) the measured spreads.")] = 1.0

    def job(self, recording: Recording) -> Job:
        """The job, recorded in this way."""
        from rankscope.experiments.simulate import Fault, Job, parse_mesh

        return Job(
            ranks=self.ranks,
            steps=self.steps,
            mesh=parse_mesh(self.mesh),
            seed=self.seed,
            layers=self.layers,
            kernels_per_layer=self.kernels_per_layer,
            microbatches=self.microbatches,
            data_parallel="fsdp" if self.fsdp else "ddp",
            tensor_parallel="sequence" if self.sequence_parallel else "all_reduce",
            synchronize=self.sync,
            device_scale=self.device_scale,
            host_scale=self.host_scale,
            jitter=self.jitter,
            faults=tuple(Fault.parse(text) for text in self.fault or ()),
            recording=recording,
        )


@dataclass(frozen=True)
class RecordingOptions:
    """How the job is recorded, and what goes wrong with it."""

    clock_offset: Annotated[
        list[str] | None,
        typer.Option(help="RANK=TIME (3=5s, 3=-20us), or TIME: a random offset of up to TIME on every rank."),
    ] = None
    drift: Annotated[
        list[str] | None, typer.Option(help="RANK=PPM, or PPM: a random drift of up to PPM on every rank.")
    ] = None
    lose: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out events: RANK=COUNT or =FRACTION, then maybe :kernel, :collective, :launch, :operator."
        ),
    ] = None
    window: Annotated[str, typer.Option(help="Every rank's recording begins and ends up to TIME early or late.")] = ""
    window_start: Annotated[list[str] | None, typer.Option(help="RANK=TIME: begins later (negative: earlier).")] = None
    window_end: Annotated[list[str] | None, typer.Option(help="RANK=TIME: ends later (negative: earlier).")] = None
    missing: Annotated[str, typer.Option(help="Ranks without a file: 3,7-9.")] = ""
    truncate: Annotated[
        list[str] | None, typer.Option(help="RANK=FRACTION: keep only this fraction of the file's bytes.")
    ] = None
    base_time: Annotated[str, typer.Option(help="Base of the times: shared, per-rank or epoch.")] = "shared"
    collective_metadata: Annotated[bool, typer.Option(help="Write collectives' metadata on their kernels.")] = True
    sequence_numbers: Annotated[bool, typer.Option("--sequence-numbers", help="Number the collectives.")] = False
    group_names: Annotated[str, typer.Option(help="Names: unique, or shared by a dimension's groups.")] = "unique"
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python frames.")] = False
    plain: Annotated[bool, typer.Option("--plain", help="Leave out rankscope's metadata and distributedInfo.")] = False
    layout: Annotated[str, typer.Option(help="Form of the JSON: torch-2.13, torch-2.9 or compact.")] = "torch-2.13"
    compression: Annotated[str, typer.Option(help="Compression of the files: gz, zst or none.")] = "gz"

    def recording(self) -> Recording:
        """The recording."""
        from rankscope.experiments.simulate import Recording

        lost = tuple(_parse_lost(text) for text in self.lose or ())
        offsets, spread = _parse_by_rank(self.clock_offset, _parse_time)
        drifts, drift_spread = _parse_by_rank(self.drift, float)
        return Recording(
            clock_offset_ns=offsets,
            clock_spread_ns=spread or 0,
            drift_ppm=drifts,
            drift_spread_ppm=drift_spread or 0.0,
            lost=lost,
            window_start_ns=_parse_by_rank(self.window_start, _parse_time)[0],
            window_end_ns=_parse_by_rank(self.window_end, _parse_time)[0],
            window_spread_ns=_parse_time(self.window) if self.window else 0,
            missing=_parse_ranks(self.missing),
            truncated=_parse_by_rank(self.truncate, float)[0],
            base_time=self.base_time,
            collective_metadata=self.collective_metadata,
            sequence_numbers=self.sequence_numbers,
            group_names=self.group_names,
            distributed_info=not self.plain,
            rankscope_metadata=not self.plain,
            stacks=self.stacks,
            layout=self.layout,
            compression=self.compression,
        )


_JOB, _RECORDING = JobOptions(), RecordingOptions()


@with_options()
def simulate(
    out: Annotated[Path, typer.Argument(help="The run directory to write; must be new or empty.")],
    job_options: JobOptions = _JOB,
    events_per_rank: Annotated[
        int, typer.Option(help="Choose the number of kernels so that a file has about this many events.")
    ] = 0,
    target_size: Annotated[
        str, typer.Option(help="Choose the number of kernels so that a file's JSON has about this size: 2GB.")
    ] = "",
    recording_options: RecordingOptions = _RECORDING,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Number of processes that write files.")] = 1,
    costs: Annotated[
        bool, typer.Option(help="Determine the cost of each fault by simulating the job without it.")
    ] = True,
) -> None:
    """Write Kineto-like traces of a simulated job, with the ground truth in a file next to them.

    Faults: slow_device, more_work, data_loading, slow_host (style=stretch|gc|asleep), memory (style=retries|copies),
    slow_network (dim=…, or link=A-B). Each takes rank=3, 0-3 or 1+5, or a slice of the mesh (dp=3); steps=11-12;
    magnitude= (a fraction of the undisturbed step) or ms=; pauses=. Durations vary as they do in real traces.
    """
    # Imported here, so that other subcommands start without the simulation.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rankscope.experiments.simulate import scaled
    from rankscope.experiments.simulate import simulate as write_run

    job = scaled(
        job_options.job(recording_options.recording()),
        events_per_rank=events_per_rank,
        bytes_per_rank=_parse_size(target_size) if target_size else 0,
    )
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("ranks", total=job.ranks - len(job.recording.missing))

        def finished(_: Written) -> None:
            progress.advance(task)

        truth = write_run(out, job, jobs=jobs, costs=costs, progress=finished)
    _print_summary(truth, out)


def _print_summary(truth: Truth, out: Path) -> None:
    from rankscope.experiments.simulate.jitter import MEASURED, QUANTILES

    job = truth.engine.job
    typer.echo(f"{counted(len(truth.files), 'trace')} in {out}: {sum(truth.json_bytes.values()) / 1e6:,.1f} MB of JSON")
    steps = ", ".join(f"{ns / 1e6:.3f}" for ns in truth.step_ns)
    typer.echo(f"steps: {steps} ms (undisturbed, without jitter: {truth.nominal_step_ns / 1e6:.3f} ms)")
    for fault, cost in zip(job.faults, truth.fault_cost_ns, strict=False):
        taken_ms = truth.nominal.taken_ns(fault) / 1e6
        typer.echo(
            f"{fault.kind} ({fault.style}): takes {taken_ms:.3f} ms per step, "
            f"costs the job {cost / 1e6:.3f} ms per step"
        )
    shown = [QUANTILES.index(q) for q in (0.01, 0.5, 0.95, 0.99)]
    for name, (source, _, values) in MEASURED.items():
        quantiles = ", ".join(f"{QUANTILES[i]:.0%} {values[i]:g}" for i in shown)
        typer.echo(f"jitter {name:13} {quantiles} (from {source})")


def _parse_time(text: str) -> int:
    match = re.fullmatch(rf"([+-]?(?:{_NUMBER}))(ns|us|µs|ms|s|m|h)", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a time", hint="for example 20us, -5s or 2h")
    return round(float(match[1]) * _TIMES[match[2]])


def _parse_size(text: str) -> int:
    match = re.fullmatch(rf"({_NUMBER})\s*(B|[kK]B|MB|GB)?", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size", hint="for example 200MB or 2GB")
    size = round(float(match[1]) * _SIZES[match[2] or ""])
    if size < 1:
        raise ConfigError(f"a file cannot have {text!r} bytes", hint="for example 200MB or 2GB")
    return size


def _parse_ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_numbers(text, MAX_RANKS)) if text else ()
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a list of ranks: {error}", hint="for example 3,7-9") from None


def _parse_by_rank(texts: list[str] | None, parse: Callable[[str], T]) -> tuple[dict[int, T], T | None]:
    """``RANK=VALUE`` as a mapping, and a bare ``VALUE``."""
    by_rank: dict[int, T] = {}
    bare: T | None = None
    for text in texts or ():
        rank, equals, value = text.rpartition("=")
        try:
            number = parse(value)
            if equals:
                by_rank[int(rank)] = number
            else:
                bare = number
        except ValueError:
            raise ConfigError(f"{text!r} cannot be read", hint="RANK=VALUE, or VALUE for all ranks") from None
    return by_rank, bare


def _parse_lost(text: str) -> Lost:
    from rankscope.experiments.simulate import Lost

    match = re.fullmatch(rf"(\d+)=({_NUMBER})(?::(\w+))?", text)
    if match is None:
        raise ConfigError(
            f"{text!r} cannot be read", hint="RANK=COUNT or RANK=FRACTION, for example 3=5 or 3=0.01:kernel"
        )
    rank, amount, what = int(match[1]), match[2], match[3] or "any"
    if "." in amount:
        return Lost(rank, fraction=float(amount), what=what)
    return Lost(rank, count=int(amount), what=what)

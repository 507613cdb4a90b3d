"""``rankscope run``: a training job under torchrun, profiled, in a run directory.

In: options of capture and torchrun, and a script. Out: a run directory; torchrun's exit code.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from rankscope.cli.capture_options import CAPTURE, OTHER_OPTIONS, PANELS, CaptureCommand
from rankscope.cli.capture_options import CONTEXT_SETTINGS as CONTEXT_SETTINGS
from rankscope.cli.signature import with_options
from rankscope.errors import without_credentials
from rankscope.jobs.exec import profiled_environment, take_options
from rankscope.jobs.run import JobResult, run_job
from rankscope.jobs.torchrun import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, installed_options, is_supported_torch_installed
from rankscope.rundir.capture_files import BY_RUN, DIRECTORIES_VARIABLE, HOOK_VARIABLE
from rankscope.rundir.config import CaptureConfig, variable_of
from rankscope.rundir.hang_dump import HANG_FOLDER
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.plurals import counted, plural
from rankscope.rundir.staging import kept_traces


class COMMAND(CaptureCommand):
    """Passes torchrun's options through."""

    usage_rest = "[TORCHRUN OPTIONS] SCRIPT.py [ARGS]..."

    def flags(self) -> set[str]:
        """Options that take no value, torchrun's too."""
        return {*super().flags(), *installed_options().flags}


_RANKS, _STAGING = variable_of("ranks"), variable_of("staging_dir")

NO_STEPS = """\
By default steps 16 to 18 are recorded, unless a warning above says otherwise: let the job make more steps, or give a
smaller --wait and --warmup. In a script without a torch.optim.Optimizer, put a Profiler around the loop:

    import rankscope

    with rankscope.Profiler() as prof:
        for batch in loader:
            ...
            prof.step()
"""

SCRIPT_PROFILERS = """\
No trace was written to {run_dir}. --take-over records instead of the script's own profiler:
{profilers}
"""


@with_options(panels=PANELS)
def run(context: typer.Context, capture: CaptureConfig = CAPTURE) -> None:
    """Run a training script under torchrun, profiled, with its traces in one run directory.

    The script needs no change: each step of its optimizer counts as a step. A rankscope.Profiler in the script takes
    precedence; what its own torch.profiler records is adopted, with its schedule, unless --take-over is given.

    All options of torchrun are passed through, for example --nproc-per-node 4, or --nnodes and --rdzv-endpoint on
    several hosts. Without any, one rank is started per accelerator (one, if there is none), with a rendezvous on a free
    port. For a script that starts its own ranks (torch.multiprocessing.spawn), use rankscope exec python SCRIPT.py.

    The exit code is torchrun's. Each option is also a variable: --wait is RANKSCOPE_WAIT.
    """
    variables, options = take_options(context.meta[OTHER_OPTIONS], installed_options().flags)
    began = time.time()
    with noted_directories() as (noted, directories):
        result = run_job(
            options,
            context.args,
            run_dir=variables.get(RUN_DIR_VARIABLE),
            run_id=variables.get(RUN_ID_VARIABLE),
            env={**profiled_environment({**os.environ, **variables}), HOOK_VARIABLE: BY_RUN, **noted},
        )
        others = [folder for folder in directories() if folder != result.run_dir and result.is_in(folder)]
    run_dir = short_path(result.run_dir)
    if written := result.traces():
        # With traces of an earlier job in the directory, the run has to be named.
        choice = " --run latest" if result.earlier else ""
        typer.echo(f"Traces: {result.run_dir}\n  rankscope summary {run_dir}{choice}", err=True)
        if result.upload_to:
            typer.echo(uploads(result, result.upload_to), err=True)
        if by_script := recorded_by_script(result.manifests()):
            typer.echo(by_script, err=True)
    for folder in others:
        typer.echo(f"Traces: {folder}, which the script names\n  rankscope summary {short_path(folder)}", err=True)
    if kept := _unwritten_traces(result.run_dir, variables, began):
        typer.echo(kept, err=True)
    elif not written and not others:
        _explain(result, variables)
    if result.exit_code != 0 and (why := _why_it_ended(result.run_dir, began)):
        typer.echo(f"{why}\n  rankscope hang {run_dir}", err=True)
    raise typer.Exit(result.exit_code)


def _why_it_ended(run_dir: Path, began: float) -> str:
    """What the watch of a failed job knows of its end; empty if nothing."""
    if not (run_dir / HANG_FOLDER).is_dir():
        return ""
    # Not at the top: a launcher needs neither.
    from rankscope.answers.hang import end_of_job
    from rankscope.show.report.formatting import plain

    verdict = end_of_job(run_dir, since=began)
    return "" if verdict is None else plain(verdict.summary, limit=600)


def short_path(path: Path) -> str:
    """A path to type, relative if it is below the working directory."""
    with suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _explain(result: JobResult, variables: Mapping[str, str]) -> None:
    """Print why there is no trace, if it is known."""
    if profilers := script_profilers(result.manifests()):
        typer.echo(SCRIPT_PROFILERS.format(run_dir=result.run_dir, profilers="\n".join(profilers)), err=True, nl=False)
    elif result.exit_code == 0 and is_supported_torch_installed():  # else a rank has said why
        typer.echo(f"No trace was written to {result.run_dir}.", err=True)
        if any(manifest.steps for manifest in result.manifests()):
            return  # the rank has said why
        typer.echo(NO_STEPS, err=True, nl=False)
        if chosen := variables.get(_RANKS, os.environ.get(_RANKS)):
            typer.echo(f"The job must also have some of the chosen ranks: {chosen}.", err=True)


def _unwritten_traces(run_dir: Path, variables: Mapping[str, str], since: float) -> str:
    """Paths of this host's traces that could not be written to the run directory; empty if there are none."""
    folders = kept_traces(variables.get(_STAGING, os.environ.get(_STAGING)), run_dir, since)
    return "\n".join(
        f"{counted(count, 'trace')} could not be written to {run_dir}, kept in {folder}\n"
        f"  rankscope gather RUN {folder}"
        for folder, count in folders.items()
    )


def script_profilers(manifests: Sequence[RankManifest]) -> list[str]:
    """The script's torch profilers according to the ranks' manifests, with the files that they wrote."""
    return sorted({f"  {profiler}" for manifest in manifests for profiler in manifest.script_profilers})


def recorded_by_script(manifests: Sequence[RankManifest]) -> str:
    """A note if only the script's profiler recorded traces, and not on all ranks, or some were killed; else empty.

    Args:
        manifests: of the job's ranks.
    """
    from rankscope.jobs.gather.complete import ranges

    adopted = {manifest.rank or 0 for manifest in manifests if any(trace.adopted for trace in manifest.written)}
    without = {manifest.rank or 0: manifest.state for manifest in manifests if not manifest.written}
    without = {rank: state for rank, state in without.items() if rank not in adopted}
    if not adopted or not without:
        return ""
    if ended := tuple(sorted(rank for rank, state in without.items() if state != "finished")):
        return f"No trace of {ranges(ended)}: {plural('it', len(ended), 'they')} ended before one was written."
    names = sorted({trace.recorded_by or "" for manifest in manifests for trace in manifest.written if trace.adopted})
    return (
        f"The script's own profiler ({'; '.join(names[:3])}) recorded {ranges(tuple(sorted(adopted)))} alone; "
        f"there is no trace of {ranges(tuple(sorted(without)))}. --take-over records all ranks instead."
    )


@contextmanager
def noted_directories() -> Iterator[tuple[dict[str, str], Callable[[], list[Path]]]]:
    """A file in which this host's ranks note run directories that the script names: a variable for the job with its
    path, and what reads it. Empty ones if there is no place for a file."""
    try:
        file = tempfile.NamedTemporaryFile(prefix="rankscope-")  # noqa: SIM115  # closed below
    except OSError:
        yield {}, list
        return
    with file:

        def directories() -> list[Path]:
            return sorted({Path(os.fsdecode(line)) for line in file.read().splitlines() if line})

        yield {DIRECTORIES_VARIABLE: file.name}, directories


def uploads(result: JobResult, url: str) -> str:
    """A note on which of this host's traces were uploaded."""
    url, kept = without_credentials(url), result.not_uploaded()
    if not kept:
        return f"Uploaded to {url}"
    names = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more" if len(kept) > 3 else "")
    # If nothing is there, it may not even be a place to gather from.
    sources = f"{url} {result.run_dir}" if len(kept) < len(result.traces()) else result.run_dir
    return f"Not uploaded to {url}, only in {result.run_dir}: {names}\n  rankscope gather RUN {sources}"

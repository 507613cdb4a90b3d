"""``rankscope measure scaling``.

In: a script and numbers of ranks. Out: a result file, printed as a table; a plot on request.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.experiments.measure.formulas import STRONG, WEAK
from rankscope.experiments.measure.jobs import WORKLOADS
from rankscope.experiments.measure.sampling import Sampling
from rankscope.experiments.measure.scaling import BATCH, SAMPLING, Study, measure_scaling
from rankscope.jobs.torchrun import accelerators
from rankscope.rundir.cpus import usable_cpus
from rankscope.show.report import scaling_plot


@with_options(without=("nproc",))
def scaling(  # noqa: PLR0913  # each is an option that users give by name
    words: o.Words,
    nproc: Annotated[str, typer.Option("--nproc", metavar="N,N,…", help="Ranks per host.")] = "1,2",
    nnodes: Annotated[str, typer.Option("--nnodes", metavar="N,N,…", help="Hosts.")] = "1",
    strong: Annotated[
        bool, typer.Option("--strong/--weak", help="Keep the global batch, or (default) that of each rank.")
    ] = False,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Strong: divided among the ranks, and inserted for {batch} in the script's arguments."
        ),
    ] = None,
    plain: Annotated[bool, typer.Option(help="Run the script as a plain process, too.")] = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curve: .png, .svg or .pdf; needs the extra `plot`.")
    ] = None,
    sampling: Sampling = SAMPLING,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """Measure how the job scales: step time, speed-up, efficiency and overheads for each number of ranks.

    A plain process, a job of one rank and jobs of more, each repeated, interleaved. A size that fails is reported, and
    the others continue; the exit status is then 1.
    """
    target = o.target_of_words(words)
    if strong and global_batch is not None and not any(BATCH in word for word in target.words):
        if words[0] not in WORKLOADS:
            raise ConfigError(
                f"the script's arguments do not contain {BATCH}, the placeholder of the batch size",
                hint=f"add it: … --strong --global-batch 64 train.py --batch {BATCH}",
            )
        target = target.with_arguments("--batch-size", BATCH)
    if strong and global_batch is None and words[0] in WORKLOADS:
        raise ConfigError("strong scaling of a workload needs a batch to divide", hint="--global-batch 32")
    if global_batch is not None and not strong:
        raise ConfigError("--global-batch is for strong scaling only", hint="add --strong")
    if plot is not None:
        scaling_plot.check(plot)
    devices = accelerators() if options.launcher is None else 0
    study = Study(
        ranks=tuple(sorted(set(o.numbers_of(nproc, "--nproc")))),
        nodes=tuple(sorted(set(o.numbers_of(nnodes, "--nnodes")))),
        mode=STRONG if strong else WEAK,
        global_batch=global_batch,
        plain=plain,
        # Devices of other hosts are unknown here.
        devices=None if options.launcher is not None else devices or len(usable_cpus()),
        accelerators=devices > 0,
        oversubscribe=options.oversubscribe,
        launcher=options.launcher,
        torchrun=o.words_of(options.torchrun),
    )
    result = o.experiment(
        "scaling", lambda out, on_progress: measure_scaling(target, out, study, sampling, on_progress), options
    )
    if plot is not None:
        scaling_plot.draw(result, plot)
        typer.echo(f"curve: {os.fspath(plot)}", err=True)
    if any(size.state == "failed" for size in result.sizes):
        raise typer.Exit(1)

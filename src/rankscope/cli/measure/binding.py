"""``rankscope measure binding``."""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.measure.binding import SAMPLING, measure_binding
from rankscope.measure.binding_policies import COMPACT, LIST, NAMES, NUMA, SPREAD
from rankscope.measure.sampling import Sampling


@with_options(without=("traced_steps",))
def binding(
    words: o.Words,
    affinities: Annotated[
        str, typer.Option(metavar="NAME,…", help=f"Which to try: {', '.join(NAMES)}; none always is.")
    ] = f"{COMPACT},{SPREAD},{NUMA}",
    cpus: Annotated[
        str | None, typer.Option("--list", metavar="CPUS", help="One of your own: 0-3:4-7, a list of CPUs a rank.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of a rank. Default: all are shared out.")] = None,
    sampling: Sampling = SAMPLING,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """Which CPUs the ranks of this host are best bound to: step time and launch latency under each affinity.

    Prints what to write for each: for srun and mpiexec, taskset, numactl, and oneAPI's variables where they apply.
    """
    target = o.target_of_words(words)
    names = [name.strip() for name in affinities.split(",") if name.strip()]
    strange = [name for name in names if name not in NAMES]
    if strange:
        raise ConfigError(f"{strange[0]!r} is no binding", hint=", ".join(NAMES))
    if LIST in names and cpus is None:
        raise ConfigError("the binding `list` needs one", hint="--list 0-3:4-7")
    start = options.start()
    o.experiment(
        "binding",
        lambda folder, on_progress: measure_binding(
            target, folder, start, names, given=cpus, cores=cores, sampling=sampling, on_progress=on_progress
        ),
        options,
    )

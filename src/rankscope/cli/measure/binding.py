"""``rankscope measure binding``.

In: a script and names of bindings. Out: a result file, printed as a table.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.experiments.measure.binding import SAMPLING, Bindings, measure_binding
from rankscope.experiments.measure.binding_policies import COMPACT, LIST, NAMES, NUMA, SPREAD
from rankscope.experiments.measure.sampling import Sampling


@with_options(without=("traced_steps",))
def binding(
    words: o.Words,
    affinities: Annotated[
        str, typer.Option(metavar="NAME,…", help=f"Bindings to compare: {', '.join(NAMES)}; none is always included.")
    ] = f"{COMPACT},{SPREAD},{NUMA}",
    cpus: Annotated[
        str | None,
        typer.Option(
            "--list", metavar="CPUS", help="A custom binding: 0-3:4-7, or list:0-3:4-7, one list of CPUs per rank."
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores per rank. Default: all cores are divided among the ranks.")
    ] = None,
    sampling: Sampling = SAMPLING,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """Compare CPU bindings of this host's ranks: step time and launch latency with each.

    Prints the options of each for srun, mpiexec, taskset and numactl, and oneAPI's variables where they apply.
    """
    target = o.target_of_words(words)
    names = [name.strip() for name in affinities.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a binding", hint=", ".join(NAMES))
    if LIST in names and cpus is None:
        raise ConfigError("the binding `list` needs a list of CPUs", hint="--list 0-3:4-7")
    start = options.start()
    o.experiment(
        "binding",
        lambda folder, on_progress: measure_binding(
            target, folder, start, Bindings(names, cpus, cores), sampling=sampling, on_progress=on_progress
        ),
        options,
    )

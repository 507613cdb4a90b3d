"""``rankscope measure buckets``.

In: a script. Out: a result file, printed as a table.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.experiments.measure.buckets import SAMPLING, Factors, measure_buckets
from rankscope.experiments.measure.sampling import Sampling


@with_options()
def buckets(
    words: o.Words,
    bucket_cap_mb: Annotated[
        str, typer.Option(metavar="N,N,…", help="DDP: bucket sizes in MiB to try; empty for none.")
    ] = "1,5,25,50,100",
    first_bucket_mb: Annotated[
        str, typer.Option(metavar="N,N,…", help="DDP: sizes of the first bucket to try, in MiB.")
    ] = "",
    switches: Annotated[bool, typer.Option(help="DDP: try gradient_as_bucket_view and static_graph, too.")] = True,
    sampling: Sampling = SAMPLING,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """Find the best bucket settings of DDP, one factor at a time; for FSDP, of resharding and prefetching.

    The script needs no change: settings replace its arguments to the wrapper (DDP, FSDP1), or change while the job runs
    (FSDP2). Only a significant difference leads to a recommendation.
    """
    target = o.target_of_words(words)
    factors = Factors(
        bucket_cap_mb=_sizes(bucket_cap_mb, "--bucket-cap-mb"),
        first_bucket_mb=_sizes(first_bucket_mb, "--first-bucket-mb"),
        switches=Factors().switches if switches else (),
    )
    start = options.start()
    o.experiment(
        "buckets", lambda out, on_progress: measure_buckets(target, out, start, factors, sampling, on_progress), options
    )


def _sizes(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(size) for size in text.split(",") if size.strip())
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a list of sizes", hint=f"write {option} 1,5,25") from None

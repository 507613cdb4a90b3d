"""``rankscope measure buckets``."""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.measure.buckets import SAMPLING, Factors, measure_buckets
from rankscope.measure.sampling import Sampling


@with_options()
def buckets(
    words: o.Words,
    bucket_cap_mb: Annotated[
        str, typer.Option(metavar="N,N,…", help="DDP: limits of a bucket in MiB; empty for none.")
    ] = "1,5,25,50,100",
    first_bucket_mb: Annotated[
        str, typer.Option(metavar="N,N,…", help="DDP: limits of the bucket that is reduced first, in MiB.")
    ] = "",
    switches: Annotated[bool, typer.Option(help="DDP: try gradient_as_bucket_view and static_graph, too.")] = True,
    sampling: Sampling = SAMPLING,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """How DDP's buckets are best set, one factor at a time; for FSDP, resharding and prefetching.

    The script needs no change: what is tried is set over its own arguments where the wrapper is made (DDP, FSDP1) or
    while the job runs (FSDP2). A recommendation is made only of a difference that is more than chance.
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
        return tuple(float(each) for each in text.split(",") if each.strip())
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no list of sizes", hint=f"write {option} 1,5,25") from None

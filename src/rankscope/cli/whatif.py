"""`rankscope whatif`.

In: a run, and scenarios as options. Out: the step time that each would give, alone and after those before it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.cli.analyze import TABLE, TableOptions, write_result
from rankscope.cli.options import DEFAULTS, RunOptions, Source
from rankscope.cli.signature import with_options
from rankscope.results import Value


@with_options()
def whatif(  # noqa: PLR0913  # each is an option that users give by name
    source: Source,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="rank=RANKS[:COMPONENT][@STEPS]: these ranks like their peers; group=RANKS: the transfers of this "
            "group like those of comparable groups. Components: compute, copies, data_loading, allocation, host. "
            "May be given several times.",
        ),
    ] = None,
    no_data_loading: Annotated[bool, typer.Option("--no-data-loading", help="Data loading takes no time.")] = False,
    no_allocation: Annotated[
        bool, typer.Option("--no-allocation", help="Calls for device memory take no time and never wait.")
    ] = False,
    no_copies: Annotated[bool, typer.Option("--no-copies", help="Copies and fills take no time.")] = False,
    no_synchronization: Annotated[
        bool, typer.Option("--no-synchronization", help="The host never waits for its device.")
    ] = False,
    no_launches: Annotated[bool, typer.Option("--no-launches", help="The host needs no time to launch.")] = False,
    buckets: Annotated[
        str | None, typer.Option(metavar="FACTOR", help="Buckets of all-reduces so many times as large: 2x.")
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="FACTOR", help="A network so many times as fast: 2x.")] = None,
    overlap: Annotated[bool, typer.Option("--overlap", help="All transfers overlap with compute.")] = False,
    balance: Annotated[
        str | None, typer.Option(metavar="ranks|stages", help="Compute is shared equally over ranks, or over stages.")
    ] = None,
    table: TableOptions = TABLE,
    options: RunOptions = DEFAULTS,
) -> None:
    """What a step would take without a straggler, with a faster network, with balanced work, and so on.

    Without scenarios: what is slower than elsewhere, and what all ranks do, in the order of what is gained.
    """
    parameters: dict[str, Value] = {
        "fix": ";".join(fix) if fix else None,
        "no_data_loading": no_data_loading,
        "no_allocation": no_allocation,
        "no_copies": no_copies,
        "no_synchronization": no_synchronization,
        "no_launches": no_launches,
        "buckets": buckets,
        "network": network,
        "overlap": overlap,
        "balance": balance,
    }
    write_result("whatif", source, parameters, table, options)

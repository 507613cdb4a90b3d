"""`rankscope demo`.

In: options of the job. Out: a run directory and its report.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from rankscope.cli.report import save
from rankscope.cli.run import short_path
from rankscope.engine.pipeline import open_run
from rankscope.errors import LaunchError, RankscopeError
from rankscope.jobs.run import run_job
from rankscope.jobs.torchrun import accelerators
from rankscope.show.report.formatting import number_of
from rankscope.show.report.html_report import write_report
from rankscope.show.report.summary import summary

WORKLOAD = "rankscope.capture.workloads.resnet18"
# On a CPU the images are smaller, so that a step takes a tenth of a second instead of a second.
_CPU = (
    "--device",
    "cpu",
    "--image-size",
    "64",
    "--steps",
    "42",
    "--batch-size",
    "5",
    "--wait",
    "6",
    "--warmup",
    "3",
    "--active",
    "6",
    "--record-shapes",
)
_SLOW = ("--slow-rank", "1")
_GPU = ("--steps", "100", "--record-shapes")


def demo(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory to write to. Default: rankscope_demo/{time}.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks. Default: one per GPU, or 2 on the CPU.")
    ] = None,
    healthy: Annotated[bool, typer.Option("--healthy", help="Without the slow rank.")] = False,
) -> None:
    """Profile a small real job and show its report: resnet18 under DDP, on 2 ranks or all GPUs.

    The loader of rank 1 augments its images in Python, so that there is something to find.
    """
    console = Console(highlight=False, soft_wrap=True)
    if importlib.util.find_spec("torch") is None:
        raise RankscopeError("the demo trains with PyTorch, which is not installed", hint="pip install torch")
    folder = output or Path("rankscope_demo") / time.strftime("%Y%m%d-%H%M%S")
    with Status("looking for devices", console=Console(stderr=True)) as status:
        devices = accelerators()
        count = ranks or (devices if devices > 1 else 2)
        on_gpu = devices >= count and devices > 1
        where = f"{count} devices" if on_gpu else f"{count} CPU processes"
        status.update(f"training resnet18 under DDP on {where}, profiled on every rank")
        began = time.monotonic()
        lines: list[str] = []
        job = run_job(
            ["-m", f"--nproc-per-node={count}"],
            [WORKLOAD, *(_GPU if on_gpu else _CPU), *(() if healthy else _SLOW)],
            run_dir=folder,
            output=lines.append,
            timeout_s=1800,
        )
        if job.exit_code != 0:
            raise LaunchError(
                f"the demo's job ended with exit code {job.exit_code}; its last lines:\n{job.log_tail}",
                path=str(folder),
                hint="does `python -c 'import torch'` work?",
            )
        results = [line.strip() for line in lines if line.startswith("resnet18:")]
        console.print(Text(f"{results[0] if results else 'trained'}  ({time.monotonic() - began:.0f} s with start-up)"))
        console.print(Text(f"traces: {len(job.traces())} in {folder}"))
        status.update("reading the traces")
        run = open_run(folder)
        shown = summary(run, console.width)
        page = write_report(run)
    console.print()
    console.print(shown)
    console.print()
    save(page, folder / "report.html")
    where_to = short_path((folder / "report.html").resolve())
    console.print(Text(f"report: {where_to} ({number_of(len(page), 'bytes')}): open it in a browser", style="bold"))
    console.print(Text(f"Next:\n  rankscope serve {short_path(folder.resolve())}", style="bold"))

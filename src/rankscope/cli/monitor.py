"""`rankscope monitor`.

In: the run directory of a watched job. Out: its numbers, pushed, served, in a file or printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Protocol

import typer

from rankscope.answers.watch.status import JUDGED_STEPS
from rankscope.errors import NoTracesError
from rankscope.show.monitor.job import WatchedJob, pause_after
from rankscope.show.monitor.numbers import Number, numbers_of
from rankscope.show.monitor.otlp import OtlpSink, check_otlp
from rankscope.show.monitor.prometheus import PrometheusSink

_NICE = 10


class Sink(Protocol):
    """Where numbers go."""

    def update(self, numbers: list[Number]) -> None:
        """The latest ones."""

    def close(self) -> None:
        """There are no more."""


def monitor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a watched job.")],
    prometheus_file: Annotated[Path | None, typer.Option(help="Write this file for Prometheus, *.prom.")] = None,
    prometheus_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics on this port; 0: any.")
    ] = None,
    prometheus_host: Annotated[str, typer.Option(help="The address to serve /metrics on.")] = "127.0.0.1",
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="OTLP endpoint to push to: http://…/v1/metrics.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="How many of the latest steps to evaluate.")] = JUDGED_STEPS,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 10.0,
) -> None:
    """Send the numbers of a watched job to Prometheus or OpenTelemetry while it runs; or print them as JSON Lines.

    Step time, waiting, stragglers, last arrivals, hangs. It waits for the log to begin, and ends with the job, on
    SIGTERM or on Ctrl-C. It runs in a process of its own, so its errors do not affect the job.
    """
    if otlp is not None:
        check_otlp(otlp)
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if sys.platform != "win32":
        with suppress(OSError):
            os.nice(_NICE)
    sinks: list[Sink] = []
    if prometheus_file is not None or prometheus_port is not None:
        prometheus = PrometheusSink(prometheus_file, prometheus_port, prometheus_host)
        sinks.append(prometheus)
        if prometheus.address:
            typer.echo(f"serving {prometheus.address}", err=True)
    try:
        job = _wait_for_job(run, steps, interval, stopped)
        if job is None:
            return
        if otlp is not None:
            sinks.append(OtlpSink(otlp, job.read().status.run_id or "unknown"))
        _follow(job, sinks, interval, stopped)
    except (KeyboardInterrupt, BrokenPipeError):
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        for sink in sinks:
            sink.close()


def _wait_for_job(run: Path, steps: int, interval: float, stopped: threading.Event) -> WatchedJob | None:
    """The job, once it has a log; None if this was stopped before."""
    waits = False
    while True:
        try:
            return WatchedJob(run, steps)
        except NoTracesError as error:
            if not waits:
                typer.echo(f"waiting for the log: {error.what}", err=True)
            waits = True
        if stopped.wait(min(interval, 1.0)):
            return None


def _follow(job: WatchedJob, sinks: Sequence[Sink], interval: float, stopped: threading.Event) -> None:
    """Until the job has ended."""
    failed: set[str] = set()
    while True:
        began, is_last = time.monotonic(), stopped.is_set()
        state = job.read()
        numbers = numbers_of(state)
        if not sinks:
            fields = {"time_ns": time.time_ns(), "numbers": [vars(each) for each in numbers]}
            typer.echo(json.dumps(fields, separators=(",", ":")))
        for sink in sinks:
            try:
                sink.update(numbers)
            except Exception as error:  # an unreachable destination must not affect the others
                if (text := f"{type(sink).__name__}: {type(error).__name__}: {error}") not in failed:
                    failed.add(text)
                    typer.echo(f"warning: {text}", err=True)
        if is_last or state.status.ended:
            return
        took = time.monotonic() - began
        stopped.wait(pause_after(took, interval) - took)

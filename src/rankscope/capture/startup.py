"""Watches for hangs of a script that does not use rankscope before its first step, when the watch of its steps begins.

It begins with ``init_process_group``: ranks that wait for one that does not come, differ in the first collective, or
wait for data are in such a hang. A job may prepare for long, and an evaluation makes no step, so that a dump here is no
proof of a hang, and never ends the process.

In: the job's call of ``init_process_group``. Out: heartbeats and dumps, as of `HangWatch`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rankscope.capture import rank_owner
from rankscope.capture.notices import warn
from rankscope.errors import ConfigError, LauncherError
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.launcher import Identity, identify
from rankscope.rundir.ranks import parse_ranks

BEFORE_TIMEOUT = 0.9
"""Of the process group's timeout, when the dump is written: NCCL ends the process after it (10 minutes by default)."""
_PARAMETERS = ("backend", "init_method", "timeout", "world_size", "rank")
"""The first of ``init_process_group``, in torch's order."""


class StartupWatch:
    """The hang watch of this process until its first step."""

    def __init__(self) -> None:
        self._begun = self._over = False

    def begin(self, group_timeout_s: float | None, *, connected: bool) -> None:
        """The process group is being made, or is there: watch from now on, unless that has begun.

        Args:
            group_timeout_s: of the process group; ``None`` if it is not known.
            connected: whether the process group is there; before, only what the launcher says is known of this rank.
        """
        if self._over or self._begun:
            return
        # Not at the top: this module is loaded while torch is.
        from rankscope.capture.hang.watch import FIRST_TIMEOUT_S, HangWatch, start_provisional
        from rankscope.capture.process import resolve_run_dir, resolve_run_id, this_process

        config = options()
        if not (connected or (config.save_dir and _is_placed_by_launcher())):
            return
        process, _ = this_process()
        if process is None or process.world_size == 1:
            return
        choice = parse_ranks(config.ranks)
        if not choice.selects(process.rank, process.local_rank):
            return
        place = process.rank, process.world_size
        if rank_owner.owner_above(config.save_dir or config.upload_to, *place) is not None:
            return
        # Without an agreed id each rank has its own, which does not identify the run.
        run_id, doubt = resolve_run_id(config.run_id, process)
        limit_s = min(FIRST_TIMEOUT_S, BEFORE_TIMEOUT * (group_timeout_s or FIRST_TIMEOUT_S))
        watch = HangWatch(
            resolve_run_dir(config.save_dir, run_id, process),
            timeout_s=limit_s,
            first_timeout_s=limit_s,
            run_id="" if doubt else run_id,
        )
        watch.ranks = choice.expression
        watch.warn = _silent
        self._begun = True
        start_provisional(watch)

    def end(self) -> None:
        """A profiler watches from now on, or the job does not want one."""
        self._over = True
        if self._begun:
            from rankscope.capture.hang.watch import end_provisional

            end_provisional()


def _silent(_text: str) -> None:
    """The manifest is written with the first step, and warns of such a run directory; so does a dump."""


def options() -> CaptureConfig:
    """The options from the environment; defaults if they are not valid, which the profiler reports when it starts."""
    try:
        return CaptureConfig.resolve({})
    except ConfigError:
        return CaptureConfig()


def watch_process_group(current: Callable[[], StartupWatch]) -> None:
    """Begin the watch when this process calls ``init_process_group``.

    Args:
        current: returns the watch of the calling process; a forked process has its own.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(c10d, "init_process_group", None)
    if original is None:
        return

    def begin(timeout: object, backend: object, *, connected: bool) -> None:
        try:
            current().begin(_group_timeout_s(c10d, timeout, backend), connected=connected)
        except Exception as error:  # capture never stops a job
            warn(f"hangs before the first step are not noticed: {type(error).__name__}: {error}")

    @functools.wraps(original)
    def init_process_group(*args: Any, **options: Any) -> Any:
        call = {**dict(zip(_PARAMETERS, args, strict=False)), **options}
        timeout, backend = call.get("timeout"), call.get("backend")
        if _may_be_launchers(call.get("rank"), call.get("world_size")):
            begin(timeout, backend, connected=False)
        result = original(*args, **options)
        begin(timeout, backend, connected=True)
        return result

    # Torch's own modules have it by name, such as the one of DeviceMesh, if they are loaded already.
    for name, module in list(sys.modules.items()):
        own = getattr(module, "__dict__", {}) if name.startswith("torch.distributed") else {}
        if own.get("init_process_group") is original:
            own["init_process_group"] = init_process_group


def _group_timeout_s(c10d: Any, timeout: object, backend: object) -> float | None:
    """The timeout of a process group with this backend, seconds."""
    if timeout is None:
        may_use_nccl = backend is None or "nccl" in str(backend) or "undefined" in str(backend)
        nccl = getattr(c10d, "default_pg_nccl_timeout", None) if may_use_nccl else None
        timeout = nccl or getattr(c10d, "default_pg_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def _may_be_launchers(rank: object, world_size: object) -> bool:
    """Whether a call may be for the job's own group; a rank's helper, which has its variables, may make another one."""
    launched, not_given = _launched(), (None, -1)
    if launched is None:
        return False
    return rank in (*not_given, launched.rank) and world_size in (*not_given, launched.world_size)


def _is_placed_by_launcher() -> bool:
    """Whether the rank and the number of ranks are known from the launcher."""
    launched = _launched()
    return launched is not None and launched.started_by_launcher and launched.world_size is not None


def _launched() -> Identity | None:
    """This process's place by the launcher's variables; ``None`` if these contradict each other."""
    try:
        return identify(os.environ)
    except LauncherError:
        return None

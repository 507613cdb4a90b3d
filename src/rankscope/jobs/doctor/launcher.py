"""The launcher's variables: whether a job can start with them, and share its cores well.

In: environment variables. Out: checks.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields

from rankscope.errors import ConfigError, LauncherError
from rankscope.jobs.doctor.check import Check
from rankscope.rundir.config import ENVIRONMENT_PREFIX, CaptureConfig, variable_of
from rankscope.rundir.cpus import usable_cpus
from rankscope.rundir.launcher import Identity, identify

_OWN = ("RANKSCOPE_CACHE", "RANKSCOPE_HOOK", "RANKSCOPE_MACHINES")


def checks(environ: Mapping[str, str], cores: int | None = None, allowed: int | None = None) -> Iterator[Check]:
    """Who this process is, how its cores are shared, and rankscope's own variables.

    Args:
        environ: the environment.
        cores: of the machine; detected by default.
        allowed: on which this process may run; detected by default.
    """
    try:
        who = identify(environ)
    except LauncherError as error:
        yield Check("launcher", "ranks", "fail", error.what, error.hint or "")
    else:
        yield _who(who)
        yield from _torch_variables(who, environ)
        yield from _cores(who, environ, cores or os.cpu_count() or 1, allowed or len(usable_cpus()))
    yield from _settings(environ)


def _who(who: Identity) -> Check:
    job = f", job {who.job_id}" if who.job_id else ""
    if who.rank is None or not who.started_by_launcher:
        where = "in a batch script, not started as a rank" if who.job_id else "not started by a launcher"
        return Check("launcher", "ranks", "ok", f"{where}{job}")
    local = f", local rank {who.local_rank}" if who.local_rank is not None else ""
    what = f"rank {who.rank} of {who.world_size if who.world_size is not None else '?'}{local}, by {who.launcher}{job}"
    if who.world_size is None:
        fix = "start with mpiexec --pmi=pmix or similar, or set WORLD_SIZE with RANK"
        return Check("launcher", "ranks", "warn", f"{what}: the number of ranks is not known", fix)
    return Check("launcher", "ranks", "ok", what)


def _torch_variables(who: Identity, environ: Mapping[str, str]) -> Iterator[Check]:
    one = [name for name in ("RANK", "WORLD_SIZE") if environ.get(name)]
    if len(one) == 1 and who.launcher in ("none", "env"):
        other = "WORLD_SIZE" if one == ["RANK"] else "RANK"
        what = f"{one[0]}={environ[one[0]]} is set without {other}"
        yield Check("launcher", "torch", "warn", what, f"unset {one[0]}, or set both: it may be left over")
    several = (who.world_size or 1) > 1 and who.started_by_launcher
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if not environ.get(name)]
    if several and lacking and who.launcher != "torchrun":
        fix = (
            "export them (rankscope job writes scripts that do), or give init_process_group an init_method, rank and "
            "world_size"
        )
        what = f"init_process_group() will not find {', '.join(lacking)}, which {who.launcher} does not set"
        yield Check("launcher", "torch", "warn", what, fix)


def _cores(who: Identity, environ: Mapping[str, str], cores: int, allowed: int) -> Iterator[Check]:
    here = who.local_world_size or 1
    threads = environ.get("OMP_NUM_THREADS", "")
    if allowed == 1 and cores > 1:
        fix = (
            "give ranks more: srun --cpus-per-task=N --cpu-bind=cores, mpiexec --cpu-bind=depth -d N, "
            "mpirun --bind-to none"
        )
        what = f"this process may use one of {cores} cores: loaders, communication and capture share it with training"
        yield Check("launcher", "cores", "warn", what, fix)
    else:
        yield Check("launcher", "cores", "ok", f"this process may use {allowed} of {cores} cores")
    if threads.isdigit() and allowed == cores and int(threads) * here > cores:
        what = f"{here} ranks with {threads} threads each on {cores} cores: more threads than cores"
        yield Check("launcher", "threads", "warn", what, f"OMP_NUM_THREADS={max(1, cores // here)}")
    elif not threads and here > 1 and who.launcher != "torchrun" and allowed == cores:
        what = f"OMP_NUM_THREADS is not set: each of {here} ranks starts {cores} threads"
        yield Check("launcher", "threads", "warn", what, f"OMP_NUM_THREADS={max(1, cores // here)}")


def _settings(environ: Mapping[str, str]) -> Iterator[Check]:
    known = {*_OWN, *(variable_of(field.name) for field in dataclass_fields(CaptureConfig))}
    given = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX))
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}?" if near else "unset it; rankscope exec --help lists the options"
            yield Check("launcher", "settings", "warn", f"{name} is not a variable of rankscope", fix)
    try:
        CaptureConfig.resolve({}, environ)
    except ConfigError as error:
        yield Check("launcher", "settings", "fail", error.what, error.hint or "correct it, or unset it")

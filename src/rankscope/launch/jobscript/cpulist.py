"""Lists of cores as Linux writes them (``0-7,32-39``), and as launchers want them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rankscope.errors import ConfigError
from rankscope.rundir.cpus import parse_cpus

_MOST = 4096


def parse_cpu_list(text: str, path: str | os.PathLike[str] | None = None) -> tuple[int, ...]:
    """The cores of a list, ascending.

    Raises:
        ConfigError: it is no list of cores.
    """
    try:
        cores = parse_cpus(text)
    except ConfigError:
        cores = []
    if not cores or cores[-1] >= _MOST:
        raise ConfigError(f"{text!r} is no list of cores", path=path, hint="for example 0-7,32-39")
    return tuple(cores)


def pals_binding(cores: Sequence[str]) -> str:
    """``--cpu-bind`` of PALS: the lists of all local ranks."""
    return "list:" + ":".join(cores)


def slurm_binding(cores: Sequence[str]) -> str:
    """``--cpu-bind`` of srun: a mask for each local rank, core 0 its lowest bit."""
    masks = (sum(1 << core for core in parse_cpu_list(each)) for each in cores)
    return "mask_cpu:" + ",".join(f"{mask:#x}" for mask in masks)

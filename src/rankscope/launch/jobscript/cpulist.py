"""Lists of cores as Linux writes them (``0-7,32-39``), and as launchers want them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rankscope.errors import ConfigError

_MOST = 4096


def parse_cpu_list(text: str, path: str | os.PathLike[str] | None = None) -> tuple[int, ...]:
    """The cores of a list, ascending.

    Raises:
        ConfigError: it is no list of cores.
    """
    cores: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip(), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= _MOST:
            raise ConfigError(f"{text!r} is no list of cores", path=path, hint="for example 0-7,32-39")
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def pals_binding(cores: Sequence[str]) -> str:
    """``--cpu-bind`` of PALS: the lists of all local ranks."""
    return "list:" + ":".join(cores)


def slurm_binding(cores: Sequence[str]) -> str:
    """``--cpu-bind`` of srun: a mask for each local rank, core 0 its lowest bit."""
    masks = (sum(1 << core for core in parse_cpu_list(each)) for each in cores)
    return "mask_cpu:" + ",".join(f"{mask:#x}" for mask in masks)

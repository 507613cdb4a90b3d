"""Digests of the training's own source files: those loaded from neither the standard library nor an installed package.

Times of two versions of a program must not be mixed, and the script is not all of it: ``rankscope measure`` checks
whether any of these files has changed before it continues.

In: the loaded modules. Out: digests by path.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.resources import files
from pathlib import Path

from rankscope.rundir.code_places import is_installed
from rankscope.rundir.measurement import digest_of

_MAX_FILES = 2000


def own_sources(known: dict[str, str]) -> dict[str, str]:
    """Digests of the source files of all modules that this process has loaded, by their absolute paths.

    Args:
        known: earlier results, which are kept: a module stays as it was when it was loaded.
    """
    digests = dict(known)
    # Rankscope itself, including its workloads, is identified by its version.
    excluded = {Path(str(files("rankscope"))).resolve()}
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    excluded |= {Path(folder).resolve() for folder in libraries if folder}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or len(digests) >= _MAX_FILES:
            continue
        try:
            path = Path(file).resolve()
            if str(path) in digests or is_installed(path) or any(map(path.is_relative_to, excluded)):
                continue
            digests[str(path)] = digest_of(path.read_bytes())
        except OSError:
            continue  # not a real file, or deleted since
    return digests

"""The training's own source files: what was loaded from neither the standard library nor an installed package.

Times of two states of a program are not to be mixed, and the script alone does not hold it: ``rankscope measure`` looks
whether any of these has changed before it goes on.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.resources import files
from pathlib import Path

from rankscope.rundir.measurement import digest_of

_MOST_FILES = 2000
_INSTALLED = {"site-packages", "dist-packages"}


def own_sources(known: dict[str, str]) -> dict[str, str]:
    """Digests of the source files of all modules that this process has loaded, by their absolute paths.

    Args:
        known: what was found earlier, and stays: a module is as it was when it was loaded.
    """
    found = dict(known)
    # Rankscope says its version; its workloads are part of it.
    others = {Path(str(files("rankscope"))).resolve()}
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    others |= {Path(place).resolve() for place in libraries if place}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or len(found) >= _MOST_FILES:
            continue
        try:
            path = Path(file).resolve()
            if str(path) in found or _INSTALLED & set(path.parts) or any(path.is_relative_to(each) for each in others):
                continue
            found[str(path)] = digest_of(path.read_bytes())
        except OSError:
            continue  # made up, or gone since
    return found

"""The questions that rankscope answers: one file each, discovered, never listed."""

from __future__ import annotations

import pkgutil
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from rankscope.errors import AnalysisError
from rankscope.results import Analysis

ENTRY_POINT = "rankscope.analyses"


@cache
def all_analyses() -> dict[str, Analysis]:
    """Every analysis by name: the files of this package, then other packages' entry points.

    A module of another package cannot take the name of one that is here, and one that cannot be loaded is warned of: it
    must not keep the others from being used.
    """
    found: dict[str, Analysis] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        analysis = getattr(import_module(f"{__name__}.{module.name}"), "analysis", None)
        if isinstance(analysis, Analysis):
            found[analysis.name] = analysis
    for point in entry_points(group=ENTRY_POINT):
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"the analysis {point.name} of {point.value} cannot be loaded: {error}", stacklevel=2)
            continue
        analysis = getattr(loaded, "analysis", loaded)
        if isinstance(analysis, Analysis):
            found.setdefault(analysis.name, analysis)
    return found


def get_analysis(name: str) -> Analysis:
    """An analysis by name; dashes serve as underscores.

    Raises:
        AnalysisError: there is none of that name.
    """
    found = all_analyses()
    wanted = name.replace("-", "_")
    if wanted not in found:
        raise AnalysisError(f"there is no analysis {name!r}", hint=f"there are: {', '.join(sorted(found))}")
    return found[wanted]

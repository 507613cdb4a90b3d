"""The analyses: one module each, found automatically.

In: a rank's tables, and the results of required analyses. Out: a frame with documented columns, findings, a headline.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rankscope.errors import AnalysisError, near_names
from rankscope.results import Analysis, discovered

ENTRY_POINT = "rankscope.analyses"


@cache
def all_analyses() -> dict[str, Analysis]:
    """Every analysis by name: the files of this package, then other packages' entry points."""
    return discovered(__name__, Analysis, entry_points(group=ENTRY_POINT))


def get_analysis(name: str) -> Analysis:
    """An analysis by name; dashes serve as underscores.

    Raises:
        AnalysisError: there is none of that name.
    """
    found = all_analyses()
    wanted = name.replace("-", "_")
    if wanted not in found:
        hint = near_names(wanted, found, "rankscope analyze lists them")
        raise AnalysisError(f"there is no analysis {name!r}", hint=hint)
    return found[wanted]

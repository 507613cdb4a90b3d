"""The analyses: one module each, found automatically.

In: a rank's tables, and the results of required analyses. Out: a frame with documented columns, findings, a headline.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib.metadata import entry_points

from rankscope.errors import AnalysisError, near_names
from rankscope.results import Analysis, discovered

ENTRY_POINT = "rankscope.analyses"
RENAMED = {
    "arrivals": ("collective_summary", "rank"),
    "communication_operations": ("collective_summary", "kind"),
    "idle_causes": ("idle", "device"),
    "launch_gaps": ("idle", "step"),
    "memory_categories": ("memory", "category"),
    "memory_composition": ("memory_curve", "category"),
    "memory_modules": ("memory", "module"),
    "memory_operators": ("memory", "operator"),
    "memory_outline": ("memory_curve", "interval"),
    "memory_sites": ("memory", "site"),
    "memory_stacks": ("memory_snapshot", "stack"),
    "memory_steps": ("memory", "step"),
    "module_work": ("work", "module"),
}
"""Names of earlier versions: the analysis that has their rows, and for which ``by``. They work for one release."""


@cache
def listed_analyses() -> dict[str, Analysis]:
    """The analyses that a user names: the files of this package, then other packages' entry points."""
    return discovered(__name__, Analysis, entry_points(group=ENTRY_POINT))


@cache
def all_analyses() -> dict[str, Analysis]:
    """Every analysis by name, with the views of each after it: all that has a result of its own."""
    return {each.name: each for analysis in listed_analyses().values() for each in (analysis, *analysis.views)}


def current_name(name: str) -> str:
    """The name that an analysis has now, with underscores for dashes; warns of an old one."""
    name = name.replace("-", "_")
    if not (note := renamed(name)):
        return name
    warnings.warn(note, FutureWarning, _level_of_caller())
    return "_by_".join(RENAMED[name])


def renamed(name: str) -> str:
    """What to use instead of an old name, as a sentence; empty for others."""
    if name not in RENAMED or name in all_analyses():
        return ""
    analysis, by = RENAMED[name]
    return f"{name} is now {analysis} by {by}; the old name works until the next release"


def _level_of_caller() -> int:
    """How many calls the function that calls this one is below the code that uses the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "rankscope":
        frame, level = frame.f_back, level + 1
    return level


def get_analysis(name: str) -> Analysis:
    """An analysis or a view by name; dashes serve as underscores.

    Raises:
        AnalysisError: there is none of that name.
    """
    found, wanted = all_analyses(), current_name(name)
    if wanted not in found:
        hint = near_names(wanted, [*found, *RENAMED], "rankscope analyze lists them")
        raise AnalysisError(f"there is no analysis {name!r}", hint=hint)
    return found[wanted]

"""What to do about a run: one rule per file, discovered.

In: results of analyses. Out: findings: what is wrong, on which ranks and in which steps, the numbers as evidence, the
potential saving per step, and advice in the terms of the user's code. A rule never computes from events. Other
packages add theirs under the entry point ``rankscope.rules``.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rankscope.results import Rule, discovered

ENTRY_POINT = "rankscope.rules"


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by name: the files of this package, then other packages' entry points."""
    return discovered(__name__, Rule, entry_points(group=ENTRY_POINT))

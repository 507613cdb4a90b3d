"""What to do about a run: one rule a file, discovered, never listed.

A rule reads results of analyses and gives findings: what is wrong, on which ranks and in which steps, the numbers it
rests on, what mending it would save a step at most, and advice in the terms of the user's code. It never computes from
events. Other packages add theirs under the entry point ``rankscope.rules``.
"""

from __future__ import annotations

import pkgutil
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from rankscope.results import Rule

ENTRY_POINT = "rankscope.rules"


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by name: the files of this package, then other packages' entry points."""
    found: dict[str, Rule] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        rule = getattr(import_module(f"{__name__}.{module.name}"), "rule", None)
        if isinstance(rule, Rule):
            found[rule.name] = rule
    for point in entry_points(group=ENTRY_POINT):
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"the rule {point.name} of {point.value} cannot be loaded: {error}", stacklevel=2)
            continue
        rule = getattr(loaded, "rule", loaded)
        if isinstance(rule, Rule):
            found.setdefault(rule.name, rule)
    return found

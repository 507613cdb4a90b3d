"""Which analyses and rules there are: each file of a package, and what other packages add."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TypeVar

from rankscope.results.analysis import Analysis, Rule

Named = TypeVar("Named", Analysis, Rule)


def discovered(package: str, kind: type[Named], points: Iterable[EntryPoint]) -> dict[str, Named]:
    """The analyses or rules of a package's files by name, then those of other packages' entry points.

    A module of another package cannot take the name of one that is here, and one that cannot be loaded is warned of: it
    must not keep the others from being used.

    Args:
        package: whose files are looked through, each for one called as its kind is: ``analysis``, ``rule``.
        kind: `Analysis` or `Rule`.
        points: the entry points.
    """
    word = kind.__name__.lower()
    found: dict[str, Named] = {}
    for module in sorted(pkgutil.iter_modules(import_module(package).__path__), key=lambda module: module.name):
        own = getattr(import_module(f"{package}.{module.name}"), word, None)
        if isinstance(own, kind):
            found[own.name] = own
    for point in points:
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"the {word} {point.name} of {point.value} cannot be loaded: {error}", stacklevel=3)
            continue
        theirs = getattr(loaded, word, loaded)
        if isinstance(theirs, kind):
            found.setdefault(theirs.name, theirs)
    return found

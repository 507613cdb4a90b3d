"""Which analyses and rules there are: each file of a package, and what other packages add.

In: a package, and entry points. Out: its analyses or rules by name; a warning for each entry point that adds none.
"""

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

    Another package's must not keep the others from being used: one that cannot be loaded, that is of another type or
    that has a name that is taken is left out, with a warning.

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
            problem = f"cannot be loaded: {error}"
        else:
            theirs = getattr(loaded, word, loaded)
            if not isinstance(theirs, kind):
                problem = f"is left out: it has no `{word}`, an instance of rankscope.{kind.__name__}"
            elif theirs.name in found:
                problem = f"is left out: there already is one with the name {theirs.name!r}"
            else:
                found[theirs.name] = theirs
                continue
        warnings.warn(f"the {word} {point.name} of {point.value} {problem}", stacklevel=3)
    return found

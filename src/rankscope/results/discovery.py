"""Find analyses and rules: each module of a package, and the entry points of other packages.

In: a package, and entry points. Out: analyses or rules by name; a warning for each entry point that adds none.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TypeVar

from rankscope.results.analysis import Analysis, Rule

Named = TypeVar("Named", Analysis, Rule)


def discovered(package: str, kind: type[Named], points: Iterable[EntryPoint]) -> dict[str, Named]:
    """The analyses or rules of a package's modules by name, then those of entry points.

    A broken plugin must not break the others: one that cannot be loaded, has another type or a name that is in use is
    left out, with a warning.

    Args:
        package: the package whose modules are searched for an attribute named like the kind: ``analysis``, ``rule``.
        kind: `Analysis` or `Rule`.
        points: the entry points.
    """
    word = kind.__name__.lower()
    found: dict[str, Named] = {}
    for module in sorted(pkgutil.iter_modules(import_module(package).__path__), key=lambda module: module.name):
        value = getattr(import_module(f"{package}.{module.name}"), word, None)
        if isinstance(value, kind):
            found[value.name] = value
    for point in points:
        try:
            loaded = point.load()
        except Exception as error:
            problem = f"cannot be loaded: {error}"
        else:
            value = getattr(loaded, word, loaded)
            if not isinstance(value, kind):
                problem = f"is left out: it has no `{word}`, an instance of rankscope.{kind.__name__}"
            elif value.name in found:
                problem = f"is left out: there already is one with the name {value.name!r}"
            else:
                found[value.name] = value
                continue
        if multiprocessing.parent_process() is None:  # the parent of a worker has warned already
            warnings.warn(f"the {word} {point.name} of {point.value} {problem}", stacklevel=3)
    return found

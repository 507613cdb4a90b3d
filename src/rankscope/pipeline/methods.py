"""Every analysis as a method of a run: ``run.operators(by="shape")``.

In: the analyses that are installed. Out: a method for each, with its signature and docs, made when it is first used.
For type checkers `methods.pyi` lists rankscope's own; ``make docs`` writes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from rankscope.analyses import all_analyses
from rankscope.results import Analysis


class AnalysisMethods:
    """Gives a class that can `analyze` every analysis as a method."""

    def __getattr__(self, name: str) -> Callable[..., pl.DataFrame]:
        if name.startswith("_") or name not in all_analyses():
            raise AttributeError(f"a run has no attribute and no analysis {name!r}")
        return _method(self, all_analyses()[name])

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *all_analyses()]


def _method(run: Any, analysis: Analysis) -> Callable[..., pl.DataFrame]:
    def method(**parameters: Any) -> pl.DataFrame:
        frame: pl.DataFrame = run.analyze(analysis.name, parameters={analysis.name: parameters})[analysis.name].frame
        return frame

    method.__name__ = analysis.name
    method.__qualname__ = f"Run.{analysis.name}"
    method.__module__ = __name__
    method.__doc__ = _doc(analysis)
    arguments = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.annotation)
        for each in analysis.parameters
    ]
    method.__signature__ = inspect.Signature(arguments, return_annotation=pl.DataFrame)  # type: ignore[attr-defined]  # PEP 362
    return method


def _doc(analysis: Analysis) -> str:
    """The analysis's doc, its arguments and the columns of the frame."""
    arguments = [f"    {each.name}: {each.doc}" for each in analysis.parameters]
    columns = [f"    {each.name}{f' ({each.unit})' if each.unit else ''}: {each.doc}" for each in analysis.columns]
    parts = [inspect.cleandoc(analysis.doc), "\n".join(["Returns a Polars frame with the columns:", *columns])]
    if arguments:
        parts.insert(1, "\n".join(["Args:", *arguments]))
    return "\n\n".join(parts)

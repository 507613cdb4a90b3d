"""Every analysis as a method of a run: ``run.operators(by="shape")``.

In: the installed analyses. Out: a method for each, with its signature and docs, made on first use. For type checkers,
`methods.pyi` lists rankscope's analyses; ``make docs`` writes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from rankscope.analyses import RENAMED, get_analysis, listed_analyses
from rankscope.results import Analysis

Method = Callable[..., pl.DataFrame]


class _MethodsOnDemand(type):
    """Makes methods when one of them, or their list, is looked up (help, completion): importing loads no analysis."""

    def __getattr__(cls, name: str) -> Method:
        if name.startswith("_") or name not in {*listed_analyses(), *RENAMED}:
            raise AttributeError(f"a run has no attribute and no analysis {name!r}")
        method = _method(get_analysis(name))
        if name not in RENAMED:  # whose uses all warn
            setattr(AnalysisMethods, name, method)
        return method

    def __dir__(cls) -> Iterable[str]:
        for name in listed_analyses():
            getattr(cls, name)
        return super().__dir__()


class AnalysisMethods(metaclass=_MethodsOnDemand):
    """Adds every analysis as a method to a class with a method `analyze`."""

    def __getattr__(self, name: str) -> Method:
        method: Method = getattr(type(self), name).__get__(self)
        return method

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *dir(type(self))}


def _method(analysis: Analysis) -> Method:
    def method(self: Any, **parameters: Any) -> pl.DataFrame:
        frame: pl.DataFrame = self.analyze(analysis.name, parameters={analysis.name: parameters})[analysis.name].frame
        return frame

    method.__name__ = analysis.name
    method.__qualname__ = f"Run.{analysis.name}"
    method.__module__ = __name__
    method.__doc__ = _doc(analysis)
    arguments = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=parameter.default,
                annotation=parameter.annotation,
            )
            for parameter in analysis.parameters
        ),
    ]
    method.__signature__ = inspect.Signature(arguments, return_annotation=pl.DataFrame)  # type: ignore[attr-defined]  # PEP 362
    return method


def _doc(analysis: Analysis) -> str:
    """The analysis's doc, its arguments and the columns of the frame."""
    arguments = [f"    {parameter.name}: {parameter.doc}" for parameter in analysis.parameters]
    parts = [inspect.cleandoc(analysis.doc), _columns(analysis)]
    if arguments:
        parts.insert(1, "\n".join(["Args:", *arguments]))
    for view in analysis.views:
        parts += [f"{view.usage}: {inspect.cleandoc(view.doc)}", _columns(view)]
    return "\n\n".join(parts)


def _columns(analysis: Analysis) -> str:
    columns = [f"    {each.name}{f' ({each.unit})' if each.unit else ''}: {each.doc}" for each in analysis.columns]
    return "\n".join(["Returns a Polars frame with the columns:", *columns])

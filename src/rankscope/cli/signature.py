"""Commands whose options are the fields of dataclasses.

In: a command with parameters that are dataclasses. Out: one that typer sees with a parameter for each of their fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from types import MappingProxyType, NoneType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from rankscope.rundir.options import Option, options_of

_NO_PANELS: Mapping[str, str] = MappingProxyType({})
C = TypeVar("C", bound=Callable[..., None])


def with_options(*, without: Collection[str] = (), panels: Mapping[str, str] = _NO_PANELS) -> Callable[[C], C]:
    """Give a command an option for each field of its dataclass parameters.

    A field is an option if :func:`~rankscope.rundir.options.option` made it, or if it is annotated with a typer option.
    Defaults of the options come from the parameter's default.

    Args:
        without: fields that this command does not offer.
        panels: headings in the help for the options of a parameter.
    """

    def decorate(command: C) -> C:
        hints = {name: _annotated(hint) for name, hint in get_type_hints(command, include_extras=True).items()}
        parameters: dict[str, inspect.Parameter] = {}
        groups: dict[str, tuple[Any, list[str]]] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            if not is_dataclass(hints[name]):
                parameters[name] = _parameter(name, hints[name], parameter.default)
                continue
            defaults = hints[name]() if parameter.default is parameter.empty else parameter.default
            options = {opt.name: opt for opt in _parameters(defaults, panels.get(name)) if opt.name not in without}
            parameters |= options
            groups[name] = defaults, list(options)

        @wraps(command)
        def called(**values: Any) -> None:
            for name, (defaults, names) in groups.items():
                given = {field: _as_field(defaults, field, values.pop(field)) for field in names}
                values[name] = replace(defaults, **given)
            command(**values)

        called.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # as PEP 362
        called.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return called  # type: ignore[return-value]  # typer sees the same command

    return decorate


def _annotated(hint: Any) -> Any:
    """The hint of a parameter, without the Optional that Python 3.10 adds if the default is None."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    return parts[0] if get_origin(hint) is Union and get_origin(parts[0]) is Annotated else hint


def _parameters(defaults: Any, panel: str | None) -> list[inspect.Parameter]:
    hints, options = get_type_hints(type(defaults), include_extras=True), options_of(defaults)
    parameters = []
    for field in fields(defaults):
        hint, default = hints[field.name], getattr(defaults, field.name)
        if field.name in options:
            repeated = isinstance(default, tuple)
            hint = list[str] | None if repeated else _on_command_line(hint)
            hint = Annotated[hint, _typer_option(options[field.name], field.name, default, panel)]
            parameters.append(_parameter(field.name, hint, None if repeated else default))
        elif get_origin(hint) is Annotated:
            parameters.append(_parameter(field.name, hint, default))
    return parameters


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _on_command_line(hint: Any) -> Any:
    """The type for typer: text if there are several."""
    kinds = [part for part in get_args(hint) if part is not NoneType]
    return str if len(kinds) > 1 else hint


def _typer_option(option: Option, field: str, default: Any, panel: str | None) -> Any:
    # A switch that is off needs no --no-.
    names = option.names or ((f"--{field.replace('_', '-')}",) if default is False else ())
    return typer.Option(
        *names, help=option.help, metavar=option.metavar, min=option.least, max=option.most, rich_help_panel=panel
    )


def _as_field(defaults: Any, name: str, value: Any) -> Any:
    return tuple(value or ()) if isinstance(getattr(defaults, name), tuple) else value

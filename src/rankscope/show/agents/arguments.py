"""Arguments of tools: declared once, for the schema that agents see and for the check of what they send.

In: declarations, and JSON values from an agent. Out: a JSON Schema, and checked values or an error that names the bad
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankscope.errors import ConfigError

Kind = Literal["text", "integer", "flag", "integers", "texts", "values"]
MAX_TEXT = 4_000
MAX_LIST = 1_024
MAX_NS = 1 << 53
"""Times on the run's clock, as on the page."""
_TYPES: Mapping[Kind, Mapping[str, Any]] = {
    "text": {"type": "string", "maxLength": MAX_TEXT},
    "integer": {"type": "integer"},
    "flag": {"type": "boolean"},
    "integers": {"type": "array", "maxItems": MAX_LIST, "items": {"type": "integer", "minimum": 0}},
    "texts": {"type": "array", "maxItems": MAX_LIST, "items": {"type": "string", "maxLength": MAX_TEXT}},
    "values": {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}},
}

_WANTED: Mapping[Kind, str] = {
    "text": "a text",
    "flag": "true or false",
    "integers": "a list of numbers from 0 on",
    "texts": "a list of texts",
    "values": "an object with texts, numbers and flags",
}


@dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    Attributes:
        name: in snake case.
        kind: its type; `values` are texts, numbers and flags by name.
        doc: what it does.
        default: its value if it is left out.
        low, high: the bounds of an integer, both included.
        choices: the valid texts; empty for any.
        required: whether it must be given.
    """

    name: str
    kind: Kind
    doc: str
    default: Any = None
    low: int = 0
    high: int = MAX_NS
    choices: tuple[str, ...] = ()
    required: bool = False

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        made = {**_TYPES[self.kind], "description": self.doc}
        if self.kind == "integer":
            made |= {"minimum": self.low, "maximum": self.high}
        if self.choices:
            made["enum"] = list(self.choices)
        if self.default is not None:
            made["default"] = self.default
        return made

    def read(self, given: Any) -> Any:
        """The value, if it is valid; null is as if it were left out.

        Raises:
            ConfigError: it is not.
        """
        if given is None:
            if self.required:
                raise ConfigError(f"the argument {self.name} is missing", hint=self.doc)
            return self.default
        if not self._fits(given):
            raise ConfigError(f"the argument {self.name} is not valid", hint=f"{self.doc} ({self._wanted()})")
        return given

    def _fits(self, given: Any) -> bool:
        if self.kind == "text":
            return _is_text(given) and (not self.choices or given in self.choices)
        if self.kind == "integer":
            return _is_integer(given) and self.low <= given <= self.high
        if self.kind == "flag":
            return isinstance(given, bool)
        if self.kind == "values":
            valid = isinstance(given, dict) and len(given) <= MAX_LIST
            return valid and all(_is_text(each) or isinstance(each, int) for each in given.values())
        if not isinstance(given, list) or len(given) > MAX_LIST:
            return False
        if self.kind == "integers":
            return all(_is_integer(each) and 0 <= each <= MAX_NS for each in given)
        return all(map(_is_text, given))

    def _wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind == "integer":
            return f"an integer from {self.low} to {self.high}"
        return _WANTED[self.kind]


def schema_of(arguments: Sequence[Argument]) -> dict[str, Any]:
    """The JSON Schema of all arguments of a tool."""
    return {
        "type": "object",
        "properties": {each.name: each.schema() for each in arguments},
        "required": [each.name for each in arguments if each.required],
        "additionalProperties": False,
    }


def read_arguments(arguments: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each argument.

    Raises:
        ConfigError: one is not valid, missing, or not known: an ignored argument would make the answer misleading.
    """
    known = {each.name for each in arguments}
    if unknown := sorted(str(name)[:100] for name in set(given) - known):
        raise ConfigError(
            f"there is no argument {unknown[0]!r}", hint=f"there are: {', '.join(sorted(known)) or 'none'}"
        )
    return {each.name: each.read(given.get(each.name)) for each in arguments}


def _is_text(given: Any) -> bool:
    return isinstance(given, str) and len(given) <= MAX_TEXT


def _is_integer(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)

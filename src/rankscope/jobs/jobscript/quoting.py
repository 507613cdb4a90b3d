"""Quoting of a user's or a site's text for a script; what cannot be quoted is refused.

In: text. Out: the same text quoted, or an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from rankscope.errors import ConfigError
from rankscope.rundir.plurals import printable

# What sbatch, qsub and flux all take in a comment line without quotes of their own, whose rules differ between them.
_DIRECTIVE = re.compile(r"[A-Za-z0-9_.,:;@%+/=&|!*()\[\]{}~^-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a shell variable can be called."""


def quoted(text: str) -> str:
    """A shell word that expands to exactly this text.

    Raises:
        ConfigError: it holds a NUL, which no argument of any program can.
    """
    if "\0" in text:
        raise ConfigError(f"{text!r} holds a NUL character, which no argument can")
    if set(text) & set("$`\\"):
        # Single quotes would keep them literal, too, but shellcheck takes that for a mistake.
        return '"' + re.sub(r'(["$`\\])', r"\\\1", text) + '"'
    return shlex.quote(text)


def words(texts: Iterable[str]) -> str:
    """Several words, quoted, with blanks between."""
    return " ".join(quoted(text) for text in texts)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A shell word in which ``{name}`` is one of the script's own variables, and the rest is literal.

    Args:
        text: what may hold placeholders.
        variables: the shell variable of each placeholder.
    """
    parts = re.split(r"(\{" + r"\}|\{".join(map(re.escape, variables)) + r"\})", text) if variables else [text]
    pieces = []
    for part in parts:
        if part.startswith("{") and part[1:-1] in variables:
            pieces.append(f'"${{{variables[part[1:-1]]}}}"')
        elif part:
            pieces.append(quoted(part))
    return "".join(pieces) or "''"


def directive_value(what: str, text: str, *, blanks: bool = False) -> str:
    """A value for a line that the scheduler reads.

    Args:
        what: whose value it is, for the message.
        text: the value.
        blanks: it may be several words.

    Raises:
        ConfigError: it has characters that are special to the scheduler, or to the shell in the next line.
    """
    if not all(_DIRECTIVE.fullmatch(word) for word in (text.split(" ") if blanks else [text])):
        raise ConfigError(
            f"{what} {text!r} cannot be written in a scheduler's directive",
            hint="allowed: letters, digits and _ . , : ; @ % + / = & | ! * ( ) [ ] { } ~ ^ -",
        )
    return text


def variable_name(text: str) -> str:
    """A name that a shell variable can have.

    Raises:
        ConfigError: it cannot.
    """
    if not VARIABLE.fullmatch(text):
        raise ConfigError(f"{text!r} cannot be the name of a variable", hint="--env NAME=VALUE")
    return text


def comment(text: str) -> str:
    """Text that stays within one comment."""
    return printable(text, " ").strip()

"""Repair JSON that real producers write wrong: invalid UTF-8, bad escapes, raw control characters, bare NaN.

In: text that does not decode. Out: text that may decode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Complete strings, so that nothing inside them is taken for a bare word; then the words that C++ prints for floats
# that JSON does not have.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:nan|inf|infinity)\b', re.IGNORECASE | re.DOTALL)
_IN_STRING = re.compile(
    rb"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb'|(?P<good>\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
    rb"|(?P<bad>\\)"
    rb"|(?P<control>[\x00-\x1f])"
)
_SUSPECT = re.compile(rb"[\\\x00-\x1f]")


def repair(text: bytes) -> bytes | None:
    """The repaired text; None if there was nothing to repair.

    Names keep what can be shown: undecodable bytes become U+FFFD, a backslash that escapes nothing is kept as a
    backslash. NaN and Infinity become null.
    """
    try:
        text.decode("utf-8")
        valid = text
    except UnicodeDecodeError:
        valid = text.decode("utf-8", "replace").encode()
    repaired = _TOKEN.sub(_repair_token, valid)
    return None if repaired == text else repaired


def text_then_repaired(text: bytes) -> Iterator[bytes]:
    """The text; then, if the caller asks for more, the repaired text if that differs."""
    yield text
    repaired = repair(text)
    if repaired is not None:
        yield repaired


def _repair_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"null"
    return _IN_STRING.sub(_repair_escape, token) if _SUSPECT.search(token) else token


def _repair_escape(match: re.Match[bytes]) -> bytes:
    kind = match.lastgroup
    if kind == "bad":
        return b"\\\\"
    if kind == "lone":
        return b"\\ufffd"
    if kind == "control":
        return b"\\u%04x" % match.group()[0]
    return match.group()

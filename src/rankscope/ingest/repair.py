"""Mend JSON text that real producers write wrong: invalid UTF-8, bad escapes, raw control characters, bare NaN."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Strings whole, so that nothing inside them is taken for a bare word; then the words that C++ prints for a float
# that JSON has none for.
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
    """The text with what can be mended mended, or None where nothing was.

    A name keeps everything that can be shown of it: undecodable bytes become U+FFFD, a backslash that escapes nothing
    stands for itself. A number that is none (NaN, Infinity) becomes null.
    """
    try:
        text.decode("utf-8")
        whole = text
    except UnicodeDecodeError:
        whole = text.decode("utf-8", "replace").encode()
    mended = _TOKEN.sub(_mend_token, whole)
    return None if mended == text else mended


def as_is_or_mended(text: bytes) -> Iterator[bytes]:
    """The text, then what it is when it is mended, if anything was to mend: that is looked for only when asked."""
    yield text
    mended = repair(text)
    if mended is not None:
        yield mended


def _mend_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"null"
    return _IN_STRING.sub(_mend_escape, token) if _SUSPECT.search(token) else token


def _mend_escape(match: re.Match[bytes]) -> bytes:
    kind = match.lastgroup
    if kind == "bad":
        return b"\\\\"
    if kind == "lone":
        return b"\\ufffd"
    if kind == "control":
        return b"\\u%04x" % match.group()[0]
    return match.group()

"""Errors that a person can act on.

Every error names the file, if there is one, what is wrong with it, and what to do. The command line prints
these three and no traceback; from Python they are ordinary exceptions with a common base.

In: a problem, its file and a hint. Out: an exception with these three as fields.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Any

_MOST_NEAR = 5
_CUT = "<redacted>"
# What URLs contain of credentials: a user, and the values of a signature and its kin.
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET_IN_URL = re.compile(
    r"([?&][\w.%-]*(?:sig|signature|token|credential|secret|password|passwd|auth|key|accesskeyid)=)[^&#\s'\"]+",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """A URL, or a text with URLs, without the credentials in them."""
    if "://" not in text:
        return text
    return _SECRET_IN_URL.sub(rf"\g<1>{_CUT}", _USER_IN_URL.sub(_CUT, text))


class RankscopeError(Exception):
    """Base of every error that rankscope raises on purpose.

    Args:
        what: what is wrong, one sentence without the file's name.
        path: the file or directory it is about, if any.
        hint: what to do about it.
    """

    def __init__(self, what: str, *, path: str | os.PathLike[str] | None = None, hint: str | None = None) -> None:
        self.what = without_credentials(what)
        self.path = None if path is None else without_credentials(os.fspath(path))
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what if self.path is None else f"{self.path}: {self.what}"
        return text if self.hint is None else f"{text}\n  → {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and errors cross process pools.
        return _rebuild, (type(self), self.what, self.path, self.hint)


def _rebuild(kind: type[RankscopeError], what: str, path: str | None, hint: str | None) -> RankscopeError:
    return kind(what, path=path, hint=hint)


def describe_error(error: BaseException) -> str:
    """What went wrong, without the file's name: for findings and log lines that name the file themselves."""
    return error.what if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"


class ConfigError(RankscopeError):
    """An argument, option or environment variable that is not valid."""


class LauncherError(RankscopeError):
    """The launcher's environment variables are missing or contradict each other."""


class TraceError(RankscopeError):
    """A trace file that cannot be read at all."""


class NotATraceError(TraceError):
    """A readable file that holds something other than a profiler trace."""


class OtherTraceError(NotATraceError):
    """A trace of which rankscope reads no event: another tool's, or one without what it reads."""


class NoTracesError(RankscopeError):
    """A path with no trace in it."""


class RunSelectionError(RankscopeError):
    """A directory that holds several runs, of which one must be chosen.

    Attributes:
        known: the runs there are (`rankscope.ingest.run_selection.KnownRun`), where the error tells.
    """

    known: tuple[Any, ...] = ()


class AnalysisError(RankscopeError):
    """An analysis that does not exist, or that cannot be computed from these traces."""


class LaunchError(RankscopeError):
    """A job that could not be started or that failed."""


def near_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for a misspelled name: the known ones that are most like it; another hint if there are none."""
    near = nearest(name, known)
    return f"near names: {', '.join(near)}" if near else otherwise


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The five known names that are most like a misspelled one, the nearest first."""
    names = sorted(set(known))
    lower = name.lower()
    close = difflib.get_close_matches(lower, names, n=_MOST_NEAR, cutoff=0.55)
    parts = [word for word in re.split(r"\W|_", lower) if len(word) > 2]
    holding = [each for each in names if lower in each or (len(each) > 3 and each in lower)]
    sharing = [each for each in names if any(part in each.split("_") for part in parts)]
    return list(dict.fromkeys([*close, *holding, *sharing]))[:_MOST_NEAR]

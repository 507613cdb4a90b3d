"""The result of one check.

In: the name of a subject, its state and a fix. Out: a line for people, or JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        subject: the part of the machine or run: ``devices``, ``network`` ….
        name: what was checked; stable from version to version.
        status: ``ok``; ``warn``, where measurements or speed may suffer; ``fail``, where something does not work.
        what: the result in one line. It may contain untrusted text: escape it where it is shown.
        fix: what to do about it; empty if nothing.
    """

    subject: str
    name: str
    status: Status
    what: str
    fix: str = ""


def worst(checks: Iterable[Check]) -> Status:
    """The most severe status among some checks."""
    return max((check.status for check in checks), key=_ORDER.index, default="ok")

"""One matter that was looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Check:
    """What was looked at.

    Attributes:
        subject: which part of the machine or run: ``devices``, ``network`` ….
        name: what of it, stable from version to version.
        status: ``ok``; ``warn``, where figures or speed may suffer; ``fail``, where something does not work.
        what: what is the case, in a line. Text of others may be in it: show it inert.
        fix: what to do about it; empty where there is nothing to do.
    """

    subject: str
    name: str
    status: Status
    what: str
    fix: str = ""


def worst(checks: Iterable[Check]) -> Status:
    """The gravest status among some checks."""
    return max((check.status for check in checks), key=_ORDER.index, default="ok")

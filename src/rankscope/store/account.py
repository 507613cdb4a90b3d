"""What became of the events of a trace: all that were read are in a table, or were skipped for a reason.

In: counts, made while a file is read. Out: the same of several files, and whether enough is missing to change figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rankscope.rundir.plurals import counted

STACKS, SHAPES, MEMORY = "stacks", "shapes", "memory"
"""What a profiler records if it is asked to."""
DAMAGED = "damaged"
NO_TIME = "without a time, or 52 days from the others"
NO_DURATION = "without a duration, or with one of over 52 days"
UNPAIRED_END = "the end of a range that does not begin"

SKIPPED_SHARE = 0.01
"""Of the timed events: if so many were skipped, figures may be wrong by as much."""
LOST_SHARE = 0.01
"""Of the launches: if so many have no device event, figures of the device are incomplete. Public traces lose none."""
LOST_LAUNCHES = 3
"""Fewer may be those that the end of the recording cut off."""
HIDDEN_SHARE = 0.05
"""Of the launches or the timed events: if the time of so many is missing, what looks idle may be work."""


@dataclass(frozen=True, slots=True)
class Account:
    """The events of one or several traces: `events` = all of `tables` + `ends` + all of `unread` + all of `unknown`.

    Attributes:
        events: in the file, with those that cannot be read as far as they can be counted.
        timed: ranges, and those that cannot be read.
        tables: events in the tables, by table.
        ends: events that end a range which another event begins: both are one row.
        unread: events that are in no table, by reason.
        unknown: ranges of categories that no analysis reads, by category; the empty text: without one.
        no_duration: ranges in the tables whose time is missing, as their duration is.
        device_events: kernels, copies and fills.
        unlaunched: those of them whose launch is not in the file.
        launches: calls that launch kernels or graphs.
        lost_launches: those of them without a device event, although no graph was captured then.
    """

    events: int = 0
    timed: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    ends: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    no_duration: int = 0
    device_events: int = 0
    unlaunched: int = 0
    launches: int = 0
    lost_launches: int = 0

    @classmethod
    def of(cls, accounts: Iterable[Account]) -> Account:
        """The account of several files together."""
        total = cls()
        for account in accounts:
            total = cls(
                **{each.name: _sum(getattr(total, each.name), getattr(account, each.name)) for each in fields(cls)}
            )
        return total

    @property
    def read(self) -> str:
        """What was read, in words: `264 events and 80 launches`."""
        launches = f" and {counted(self.launches, 'launch', 'launches')}" if self.launches else ""
        return counted(self.events, "event") + launches

    @property
    def missing(self) -> int:
        """Events that are neither in a table nor skipped for a reason: 0, or there is an error in the reader."""
        return self.events - self.ends - sum(sum(each.values()) for each in (self.tables, self.unread, self.unknown))

    @property
    def skipped(self) -> dict[str, int]:
        """Timed events whose time is in no figure, by reason, the most frequent first."""
        reasons = Counter(self.unread)
        reasons["of an unknown category"] = sum(self.unknown.values())
        reasons[NO_DURATION] += self.no_duration
        return {reason: number for reason, number in reasons.most_common() if number}

    @property
    def unknown_share(self) -> float:
        """The part of the timed events that is of unknown categories; 0 without any."""
        return sum(self.unknown.values()) / max(self.timed, 1)

    @property
    def skipped_share(self) -> float:
        """The part of the timed events that was skipped; 0 without any."""
        return sum(self.skipped.values()) / max(self.timed, 1)

    @property
    def lacks_device_events(self) -> bool:
        """Whether the profiler lost device events: calls were made that launch them."""
        return self.lost_launches >= max(LOST_SHARE * self.launches, LOST_LAUNCHES)

    @property
    def lacks_device(self) -> bool:
        """Whether it has none of the device events that were launched: operators are not what was computed then."""
        return self.lacks_device_events and self.lost_launches == self.launches

    @property
    def hides_work(self) -> bool:
        """Whether so much time is missing that what looks idle may be work: what steps were spent on is not known."""
        lost = self.lacks_device_events and self.lost_launches >= HIDDEN_SHARE * self.launches
        return lost or self.no_duration + sum(self.unknown.values()) > HIDDEN_SHARE * self.timed

    @property
    def hidden(self) -> str:
        """What is missing of the time of launches and events, in words; empty if nothing is."""
        timed = counted(self.timed, "timed event")
        parts = {
            f"of {counted(self.launches, 'launch', 'launches')} have no device event": self.lost_launches,
            f"of {timed} are of unknown categories": sum(self.unknown.values()),
            f"of {timed} have no duration": self.no_duration,
        }
        return ", ".join(f"{number:,} {what}" for what, number in parts.items() if number)

    @property
    def is_clean(self) -> bool:
        """Whether no more is missing than figures can bear."""
        return not self.missing and self.skipped_share < SKIPPED_SHARE and not self.lacks_device_events

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Account:
        """The reverse of `to_json`.

        Raises:
            TypeError: it is the object of another version.
        """
        return cls(**values)


def _sum(one: Any, other: Any) -> Any:
    return one + other if isinstance(one, int) else dict(Counter(one) + Counter(other))

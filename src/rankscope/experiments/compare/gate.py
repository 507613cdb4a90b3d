"""Conditions on a diff, for CI: ``step_time > 5%``.

In: conditions as text, and a diff. Out: the rows that exceed a limit.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import polars as pl

from rankscope.errors import ConfigError
from rankscope.experiments.compare import Diff
from rankscope.experiments.compare.rows import SECTIONS

# Names may contain colons (`aten::mm`), so only known sections count as one.
_CONDITION = re.compile(
    rf"^\s*(?:(?P<section>{'|'.join(SECTIONS)}):)?(?P<name>.+?)\s*(?P<sign>>=|<=|>|<)\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%|\w+)?\s*$"
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_UNITS = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9,
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3,
}  # fmt: skip
_TIMES = ("ns", "us", "µs", "ms", "s")
_MEASURED = ("steps", "phases", "memory")
"""The sections with a fixed set of rows, which a run either recorded or not."""
_HINT = "write for example 'step_time > 5%', 'exposed_communication > 2ms', 'kernels:NAME > 10%' or 'findings > 0'"


@dataclass(frozen=True)
class Breach:
    """A row that changed beyond a condition's limit.

    Attributes:
        name: the row's; ``findings`` for how many were gained.
        change: in `unit`.
        unit: ``ns``, ``bytes``, or ``count`` for findings.
        ratio: change divided by the first run's value; None if that is 0.
        significant: whether the change is significant; None with too few steps to tell.
        verdict: the same in words, with the test; None for rows that only one run has.
    """

    name: str
    change: float
    unit: str
    ratio: float | None = None
    significant: bool | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class Condition:
    """A limit on the change of the rows with one name: it fails if a change exceeds it.

    Attributes:
        text: as it was written.
        section: the rows' section; None for the first section that has the name.
        name: the row's name; ``findings`` for how many were gained.
        sign: `>`, `>=`, `<` or `<=`.
        limit: the change, or its share of the first run where `relative`.
        relative: whether the limit is a share.
        unit: ``ns``, ``bytes``, or empty if none was written.
    """

    text: str
    section: str | None
    name: str
    sign: str
    limit: float
    relative: bool
    unit: str

    def fails(self, diff: Diff) -> Breach | None:
        """The change that exceeds the limit; None if none does.

        Raises:
            ConfigError: the diff has no such row, or it has another unit.
        """
        if self.name == "findings":
            gained = len(diff.gained)
            return Breach(self.name, gained, "count") if _SIGNS[self.sign](gained, self.limit) else None
        rows = diff.frame.filter(pl.col("name") == self.name)
        if self.section is not None:
            rows = rows.filter(pl.col("section") == self.section)
        if rows.is_empty():
            raise ConfigError(f"{self.text!r}: no row is called {self.name!r}", hint=self._nearest(diff.frame))
        # One name may be several rows, by shapes or by what launches it: the limit applies to each.
        same = rows.filter(pl.col("section") == rows["section"][0])
        if self.unit and same["unit"][0] != self.unit:
            raise ConfigError(f"{self.text!r}: {self.name} is in {same['unit'][0]}", hint=_HINT)
        for row in same.iter_rows(named=True):
            # A kernel that one run lacks takes no time there. A step or a peak that it lacks is unknown, and a run that
            # recorded nothing must not count as a fast one.
            lacking = " and ".join(side for side in ("a", "b") if row[side] is None).upper()
            if lacking and row["section"] in _MEASURED:
                raise ConfigError(
                    f"{self.text!r} cannot be judged: {lacking} has no {self.name}",
                    hint="see what its traces contain: rankscope summary",
                )
            # A change from 0 exceeds any relative limit.
            from_zero = float("inf") if row["change"] > 0 else 0.0
            ratio = from_zero if row["change_ratio"] is None else row["change_ratio"]
            if _SIGNS[self.sign](ratio if self.relative else row["change"], self.limit):
                about = (row["change_ratio"], row["significant"], row["verdict"])
                return Breach(row["name"], row["change"], row["unit"], *about)
        return None

    def _nearest(self, frame: pl.DataFrame) -> str:
        """Similar names, for a hint."""
        if self.section is None or self.section in _MEASURED:
            measured = frame.filter(pl.col("section").is_in(_MEASURED))
            return f"there are: {', '.join(measured['name'].unique(maintain_order=True))}"
        names_in_section = frame.filter(pl.col("section") == self.section)["name"].unique(maintain_order=True).to_list()
        names = get_close_matches(self.name, names_in_section, n=3, cutoff=0.3) or names_in_section[:3]
        if not names:
            return f"no {self.section} at all"
        return f"nearest of the {len(names_in_section)} {self.section}: {', '.join(names)}"


@dataclass(frozen=True)
class Judged:
    """A condition, and what became of it.

    Attributes:
        condition: the condition.
        breach: the change that exceeds it; None if none does.
        error: why it cannot be judged; None if it can.
    """

    condition: Condition
    breach: Breach | None = None
    error: ConfigError | None = None


def judge(conditions: Iterable[Condition], diff: Diff) -> list[Judged]:
    """What becomes of each condition."""
    judged = []
    for condition in conditions:
        try:
            judged.append(Judged(condition, condition.fails(diff)))
        except ConfigError as error:
            judged.append(Judged(condition, error=error))
    return judged


def parse_condition(text: str) -> Condition:
    """A condition as it is written on the command line.

    Raises:
        ConfigError: it is not a valid condition.
    """
    found = _CONDITION.match(text)
    unit = found["unit"] if found else None
    if not found or (unit is not None and unit != "%" and unit not in _UNITS):
        raise ConfigError(f"{text!r} is not a condition", hint=_HINT)
    relative = unit == "%"
    scale = 0.01 if relative else _UNITS.get(unit or "", 1.0)
    kind = "" if unit is None or relative else ("ns" if unit in _TIMES else "bytes")
    return Condition(
        text, found["section"], found["name"], found["sign"], float(found["limit"]) * scale, relative, kind
    )

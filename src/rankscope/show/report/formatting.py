"""Numbers and names as text for people.

In: values with their units, and names from traces, which are never trusted. Out: text with no control characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from rankscope.results import Evidence, Finding, Headline
from rankscope.rundir.plurals import plural
from rankscope.rundir.ranges import runs_of

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZE = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
# Control characters, escapes among them; characters that change the writing direction, hide, or end a line; and lone
# surrogates, which a path may contain and no terminal can show.
_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_UNSEEN = frozenset(("Cf", "Cs", "Co", "Zl", "Zp"))
_PLACE = re.compile(r"(\{\w+\})")
NOTHING = "–"
_TITLE = 300
MINUS = "\N{MINUS SIGN}"


def number_of(value: float, unit: str) -> str:
    """A number with its unit: `12.4 ms`, `38.0 %`, `151 MB`; negative numbers get a true minus sign."""
    if value < 0:
        return f"{MINUS}{number_of(-value, unit)}"
    if unit == "ns":
        return _scaled(value, _TIME)
    if unit == "bytes":
        return _scaled(value, _SIZE)
    if unit == "ratio":
        return percent(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" + (f" {unit}" if unit not in ("", "count", "ranks", "elements") else "")
    # From a thousand on, without decimals and without an exponent.
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return digits + (f" {unit}" if unit not in ("", "count") else "")


def with_interval(value: float, low: float | None, high: float | None, unit: str, *, signed: bool = False) -> str:
    """A number with both ends of its interval, where it has one: `23.8 % (−1.5 to 29.3 %)`.

    Args:
        value: the number.
        low, high: the ends; None if there is no interval.
        unit: of all three.
        signed: whether positive ones get a plus sign.
    """
    write = signed_number if signed else number_of
    if low is None or high is None:
        return write(value, unit)
    first, second = write(low, unit), write(high, unit)
    start, _, suffix = first.rpartition(" ")
    if start and second.endswith(f" {suffix}"):
        first = start
    return f"{write(value, unit)} ({first} to {second})"


def signed_number(value: float, unit: str) -> str:
    """A number with its unit and its sign: `+12.4 ms`."""
    return f"{'+' if value > 0 else ''}{number_of(value, unit)}"


def percent(ratio: float) -> str:
    """A ratio ≥ 0 as a percentage: `38.0 %`; below 1 % with a further digit."""
    shown = 100 * ratio
    if 0 < shown < 0.005:
        return "< 0.01 %"
    return f"{shown:.{2 if 0 < shown < 1 else 1}f} %"


def _scaled(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    """Three digits in the largest unit that fits, after rounding: 999.9 µs is `1.00 ms`."""
    if value == 0:
        return "0"
    for size, name in scale:
        if value >= size * (1 - 0.5e-3) or size == 1.0:
            scaled = value / size
            if size == 1.0 and float(value).is_integer():
                return f"{scaled:.0f} {name}"
            digits = next((digits for digits, below in ((2, 9.995), (1, 99.95)) if scaled < below), 0)
            return f"{scaled:.{digits}f} {name}"
    return str(value)


def inert(text: str) -> str:
    """Text without control, escape or direction characters; line breaks stay."""
    shown = _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)
    return shown if shown.isascii() else "".join(c for c in shown if unicodedata.category(c) not in _UNSEEN)


def plain(text: object, *, limit: int = 200) -> str:
    """One line of inert text, shortened to `limit`."""
    shown = inert(str(text)).replace("\n", "\N{REPLACEMENT CHARACTER}")
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def cell(value: object, unit: str) -> str:
    """A table's cell."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number_of(value, unit) if unit else (f"{value}" if isinstance(value, int) else f"{value:.4g}")
    return plain(value, limit=72)


def ranks_text(ranks: list[int] | tuple[int, ...]) -> str:
    """Ranks as ranges: `0–3, 7`."""
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs_of(ranks)) or "none"


def numbered(noun: str, numbers: list[int] | tuple[int, ...], *, limit: int = 200) -> str:
    """Ranks or steps with their noun: `rank 3`, `ranks 0–3, 7`."""
    return f"{plural(noun, len(numbers))} {plain(ranks_text(numbers), limit=limit)}"


def per_step(steps: Sequence[int]) -> str:
    """What a run's amounts refer to: `per step`, or the recorded span where no steps are marked."""
    return "per step" if steps else "in the recorded span"


def saving_of(finding: Finding, steps: Sequence[int]) -> str:
    """The potential saving, to follow a finding's title: ` (saves up to 1.50 ms per step)`; empty without one.

    Where fixing it alone saves nothing, as another rank is as late: what it costs.

    Args:
        steps: the run's.
    """
    if not finding.saving_ns:
        return f" (costs up to {number_of(finding.cost_ns, 'ns')} {per_step(steps)})" if finding.cost_ns else ""
    return f" (saves up to {number_of(finding.saving_ns, 'ns')} {per_step(steps)})"


def _value(each: Evidence) -> str:
    # A finding's title is our own sentence, around names.
    return plain(each.value, limit=_TITLE) if each.name == "finding" else cell(each.value, each.unit)


def sentence(headline: Headline) -> str:
    """An analysis's headline with its values filled in; a placeholder without a value stays."""
    shown = {f"{{{each.name}}}": _value(each) for each in headline.values}
    return "".join(shown.get(part, part) for part in _PLACE.split(headline.text))

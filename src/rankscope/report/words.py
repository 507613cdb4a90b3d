"""Numbers and names as people read them. Names come from traces and are never trusted."""

from __future__ import annotations

import re
import unicodedata

from rankscope.rundir.ranges import runs_of

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZE = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
# Controls, of which escapes are some; characters that turn the direction of writing, hide, or end a line; and halves of
# surrogate pairs, which a path may hold and no terminal can show.
_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_UNSEEN = frozenset(("Cf", "Cs", "Co", "Zl", "Zp"))
NOTHING = "–"


def number_of(value: float, unit: str) -> str:
    """A number with its unit: `12.4 ms`, `38 %`, `151 MB`."""
    if unit == "ns":
        return _scaled(value, _TIME)
    if unit == "bytes":
        return _scaled(value, _SIZE)
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" + (f" {unit}" if unit not in ("", "count", "ranks", "elements") else "")
    # Of thousands no digit is worth a power of ten.
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return digits + (f" {unit}" if unit not in ("", "count") else "")


def _scaled(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return "0"
    for size, name in scale:
        # What is rounded to three digits belongs to the next unit: 999.6 ms are 1.00 s, not 1000 ms.
        if abs(value) >= size * 0.9995 or size == 1.0:
            if size == 1.0 and float(value).is_integer():
                return f"{value:.0f} {name}"
            scaled = float(f"{value / size:.3g}")
            return f"{scaled:.{max(0, 3 - len(str(int(abs(scaled)))))}f} {name}"
    return str(value)


def counted(number: int, noun: str, several: str | None = None) -> str:
    """``1 rank``, ``2 ranks``.

    Args:
        number: how many.
        noun: of one.
        several: of more; by default with an s.
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def inert(text: str) -> str:
    """Text that a terminal shows and does not obey: no control, escape or direction characters; lines stay."""
    shown = _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)
    return shown if shown.isascii() else "".join(c for c in shown if unicodedata.category(c) not in _UNSEEN)


def plain(text: object, *, limit: int = 200) -> str:
    """One line of inert text, and no novel."""
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
    """Ranks as people write them: `0–3, 7`."""
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs_of(ranks)) or "none"

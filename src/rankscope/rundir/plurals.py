"""Counts with their nouns (1 step, 2 steps), lists in a sentence, and untrusted text as one line.

In: a count and a noun, or words. Out: text.
"""

from __future__ import annotations

from collections.abc import Sequence


def plural(noun: str, count: float, many: str | None = None) -> str:
    """The form of a noun after a count: ``step`` after 1, else ``steps``, or `many` if an s is not enough."""
    return noun if count == 1 else (many if many is not None else f"{noun}s")


def counted(count: int, noun: str, many: str | None = None) -> str:
    """A count with its noun: ``1 step``, ``2 steps``, ``12,000 steps``."""
    return f"{count:,} {plural(noun, count, many)}"


def ranks_on(ranks: int, nodes: int) -> str:
    """The size of a job: ``4 ranks``, ``4 ranks on 2 nodes``."""
    return counted(ranks, "rank") + (f" on {counted(nodes, 'node')}" if nodes > 1 else "")


def listed(parts: Sequence[str]) -> str:
    """A list in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def in_sentence(title: str) -> str:
    """A title as a part of a sentence: without its capital, unless it begins with a name such as ``DDP``."""
    return title[:1].lower() + title[1:] if title[1:2].islower() or title[1:2] == " " else title


def printable(text: str, instead: str = "?") -> str:
    """Untrusted text with control characters replaced."""
    return "".join(character if character.isprintable() else instead for character in text)

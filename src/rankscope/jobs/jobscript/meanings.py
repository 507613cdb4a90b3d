"""What the lines for a scheduler ask for, so that a line of the user's replaces those that mean the same.

sbatch and qsub refuse some pairs of such lines (``--mem`` with ``--mem-per-cpu``), and take the last of others.

In: lines as ``#SBATCH``, ``#PBS`` or ``#flux:`` has them. Out: their options, or the lines that are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SHORT: Mapping[str, Mapping[str, str]] = {
    "slurm": {
        "A": "account", "C": "constraint", "G": "gpus", "J": "job-name", "N": "nodes", "c": "cpus-per-task",
        "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "s": "oversubscribe", "t": "time",
    },
    "pbs": {},
    "flux": {
        "B": "bank", "N": "nodes", "c": "cores-per-slot", "g": "gpus-per-slot", "n": "nslots", "q": "queue",
        "t": "time-limit", "x": "exclusive",
    },
}  # fmt: skip
# Of an option that is not here, its name is the meaning.
_MEANINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "slurm": {
        **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), ("memory",)),
        **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), ("devices",)),
        **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), ("cores",)),
        **dict.fromkeys(("ntasks-per-node", "tasks-per-node", "ntasks-per-gpu"), ("tasks of a node",)),
        **dict.fromkeys(("exclusive", "oversubscribe", "share"), ("sharing",)),
    },
    # PBS takes the old way of naming nodes beside neither of these.
    "pbs": {"nodes": ("select", "place")},
    "flux": {},
}


@dataclass(frozen=True)
class Option:
    """One option in a line for the scheduler."""

    name: str
    """Its long name, without dashes; of PBS's ``-l``, the resource's."""
    value: str
    text: str
    """As a line has it."""
    meanings: tuple[str, ...]


def options(line: str, scheduler: str) -> list[Option]:
    """The options in a line, each resource of ``-l`` as one."""
    groups: list[list[str]] = []
    for word in line.split():
        if word.startswith("-") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [option for group in groups for option in _options(group, scheduler)]


def _options(words: list[str], scheduler: str) -> list[Option]:
    text = " ".join(words)
    if text.startswith("--"):
        name, _, value = text[2:].replace(" ", "=", 1).partition("=")
    else:
        name, value = _SHORT[scheduler].get(text[1:2], text[1:2]), text[2:].strip()
    if scheduler == "pbs" and name in ("l", "W"):
        parts = [(part.partition("="), f"-{name} {part}") for part in re.split(r",(?=\w+=)", value)]
        return [Option(key, value, text, _meanings(key, value, scheduler)) for (key, _, value), text in parts]
    return [Option(name, value, text, _meanings(name, value, scheduler))]


def _meanings(name: str, value: str, scheduler: str) -> tuple[str, ...]:
    if scheduler == "slurm" and name == "gres":
        # It may ask for a local disk as well.
        return ("devices",) if re.search(r"(^|,)(gres[:/])?gpu\b", value) else ("gres",)
    return _MEANINGS[scheduler].get(name, (name,))


def without_replaced(lines: Iterable[str], by: Iterable[str], scheduler: str) -> list[str]:
    """The lines without the options whose meaning is that of an option in others.

    Args:
        lines: those that may be replaced.
        by: those that replace.
        scheduler: whose lines they are.
    """
    meant = {meaning for line in by for option in options(line, scheduler) for meaning in option.meanings}
    kept = []
    for line in lines:
        found = options(line, scheduler)
        left = [option.text for option in found if not meant & set(option.meanings)]
        if left:
            kept.append(line if len(left) == len(found) else " ".join(left))
    return kept


def last_number(lines: Iterable[str], scheduler: str, *names: str) -> int | None:
    """The whole number of the last option that has one of these names, and one; of ``gres``, that of its devices."""
    found = None
    for option in (option for line in lines for option in options(line, scheduler)):
        if option.name in names:
            # A type may stand before the number: gpu:p100:2, p100:2.
            pattern = (
                r"(?:.*,)?(?:gres[:/])?gpu(?::[A-Za-z]\w*)?:(\d+)\b.*" if option.name == "gres" else r"(?:\w+:)?(\d+)"
            )
            match = re.fullmatch(pattern, option.value, re.ASCII)
            found = int(match[1]) if match else found
    return found

"""What each rule and threshold of the straggler engine buys: each is switched off or moved, and kept runs scored again.

`python -m benchmarks.diagnosis ablation --keep DIR` reads the records anywhere below DIR (`replay`) and prints a row
for each variant that changes a finding of any run, and last the variants that change none.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.diagnosis.replay import Record, read, said, scores
from benchmarks.diagnosis.scoring import Case, Said, verdicts
from rankscope.primitives import stragglers as engine
from rankscope.primitives.stragglers import causes, detectors, measures, network, observations, stragglers
from rankscope.primitives.stragglers.thresholds import Thresholds

MOVED = (0.5, 2.0)
"""Each threshold times these."""
LEAST = 0.05
"""Of a step: faults that cost less are counted apart."""
SETS = ("simulated", "pairs", "pipelines", "real, perturbed", "real Gloo jobs")
NOT_REPLAYED = ("paces", "timeline", "waits")
"""Modules whose work is in the records already, or that no finding depends on."""

Change = tuple[Any, str, Any]
Variants = dict[str, list[Change]]


def modules() -> list[ModuleType]:
    """The modules of the engine that are replayed."""
    names = [each.name for each in pkgutil.iter_modules(engine.__path__) if each.name not in NOT_REPLAYED]
    return [importlib.import_module(f"{engine.__name__}.{name}") for name in names]


def rules() -> Variants:
    """Each rule switched off."""
    found: Variants = {"as it is": []}
    for detector in detectors.DETECTORS:
        rest = tuple(each for each in detectors.DETECTORS if each is not detector)
        found[f"without {detector.__name__}"] = [(detectors, "DETECTORS", rest)]
    made = measures.measures
    for name in (
        "device", "allocation", "data_loading", "host", "nothing", "work", "slower", "steady", "host_steady",
    ):  # fmt: skip
        found[f"without measure {name}"] = [
            (detectors, "measures", lambda seen, name=name: [each for each in made(seen) if each.name != name])
        ]
    found |= {
        "without ranks left out on trial": [(detectors, "TRIALS", 0)],
        "no rank against its own steps": [(stragglers.Comparison, "_late_alone", lambda _: [])],
        "no program against others": [(stragglers.Comparison, "_slow_programs", lambda _: [])],
        "slices are not merged": [(stragglers.Comparison, "by_slice", lambda _, found, slices: found)],
        "slow hosts allocate like others": [(causes, "_of_host", lambda more, usual: more)],
        "lost events are not filled in": [
            (observations, "with_lost_filled", lambda value, lost, role: np.where(lost, np.nan, value))
        ],
        "no network against its own steps": [
            (network, "_apart", lambda taken, ratios, step_ns: np.zeros(taken.size, dtype=np.bool_))
        ],
    }
    return found


def moved() -> Variants:
    """Each threshold moved: the fields of `Thresholds`, and the constants of the engine's modules."""
    found: Variants = {}
    for name, value in dataclasses.asdict(Thresholds()).items():
        for times in MOVED:
            limits = Thresholds(**{name: type(value)(value * times)})
            found[f"{name} · {times:g}"] = [
                (stragglers, "Thresholds", lambda limits=limits: limits),
                (network, "LIMITS", limits),
            ]
    constants: dict[str, list[ModuleType]] = {}
    for module in modules():
        for name, value in vars(module).items():
            if name.strip("_").isupper() and type(value) in (int, float):
                constants.setdefault(name, []).append(module)
    for name, owners in constants.items():
        now = getattr(owners[0], name)
        for times in MOVED:
            value = type(now)(now * times) or 1
            if value != now:
                found[f"{name} · {times:g}"] = [(owner, name, value) for owner in owners]
    return found


_records: list[Record] = []


def _read(folder: Path) -> None:
    _records[:] = [record for record in read(folder) if _set_of(record)]


def _set_of(record: Record) -> str:
    """Which of `SETS` a record belongs to; none: two or three steps of two ranks, in which no rank is judged."""
    for start, name in (("seed", SETS[0]), ("clean", SETS[0]), ("stages", SETS[2]), ("launch", SETS[4])):
        if record.name.startswith(start):
            return SETS[1] if "ranks 2" in record.name else name
    return SETS[3] if record.inputs.world_size != 2 or record.recorded == record.name else ""


def _score(label: str) -> tuple[str, list[Case], list[tuple[Said, ...]]]:
    """The cases of a variant, and all findings."""
    with ExitStack() as stack:
        for owner, name, value in (rules() | moved())[label]:
            stack.enter_context(patch.object(owner, name, value))
        findings = [said(each) for each in _records]
        return label, scores(_records, findings), findings


def ablation(folder: Path, workers: int = 2) -> Iterator[str]:
    """Lines of Markdown. In each cell: rank right, cause right of the faults from 5 % of a step; rank right of the
    smaller ones; findings about ranks without a fault (stalls apart).
    """
    of_set = {record.name: _set_of(record) for record in read(folder)}
    yield f"| | {' | '.join(SETS)} | runs with other findings |"
    yield "|---|" + "---|" * (len(SETS) + 1)
    usual: tuple[str, ...] = ()
    findings: list[tuple[Said, ...]] = []
    nothing: list[str] = []
    with ProcessPoolExecutor(workers, get_context("spawn"), _read, (folder,)) as pool:
        for label, cases, of_records in pool.map(_score, rules() | moved()):
            cells = tuple(_cell([case for case in cases if of_set[case.name] == name]) for name in SETS)
            usual, findings = usual or cells, findings or of_records
            other = sum(a != b for a, b in zip(of_records, findings, strict=True))
            if label != "as it is" and not other:
                nothing.append(label)
                continue
            told = (cell if cell != known or not other else "" for cell, known in zip(cells, usual, strict=True))
            yield f"| {label} | {' | '.join(told)} | {other} of {len(of_records)} |"
    yield ""
    yield f"No finding changes: {', '.join(nothing)}."


def _cell(cases: Sequence[Case]) -> str:
    each = [verdict for case in cases for verdict in verdicts(case)]
    large, small = ([one for one in each if (one.done.cost >= LEAST) is is_large] for is_large in (True, False))
    wrong = sum(
        not said.stall and not any(said.ranks <= done.ranks for done in case.done)
        for case in cases
        for said in case.said
    )
    rank, cause = sum(one.rank for one in large), sum(one.cause for one in large)
    return f"{rank}, {cause} of {len(large)}; {sum(one.rank for one in small)} of {len(small)}; {wrong}"

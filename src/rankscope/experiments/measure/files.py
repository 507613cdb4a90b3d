"""Read and write the result files of experiments in an output directory.

In: results, or a directory. Out: files, or results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from rankscope.errors import RankscopeError
from rankscope.experiments.measure import SCHEMA
from rankscope.experiments.measure.results import AnyResult, Binding, Buckets, Overhead, ProfilerCost, Scaling
from rankscope.rundir.atomic import write_atomic

KINDS: dict[str, type[AnyResult]] = {
    "overhead": Overhead,
    "scaling": Scaling,
    "buckets": Buckets,
    "binding": Binding,
    "profiler": ProfilerCost,
}
R = TypeVar("R", Overhead, Scaling, Buckets, Binding, ProfilerCost)


def path_in(folder: Path, measurement: str) -> Path:
    """The path of a result: ``FOLDER/overhead.json``."""
    return folder / f"{measurement}.json"


def save(result: AnyResult, folder: Path) -> Path:
    """Write a result into its output directory, atomically.

    Raises:
        RankscopeError: the file cannot be written.
    """
    path = path_in(folder, result.measurement)
    try:
        write_atomic(path, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
    return path


def load(kind: type[R], folder: Path) -> R:
    """Read a result of that kind.

    Raises:
        RankscopeError: there is none, it is not one, or it is of another schema.
    """
    name = next(name for name, known in KINDS.items() if known is kind)
    path = path_in(folder, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RankscopeError(
            f"cannot be read: {error.strerror}", path=path, hint=f"`rankscope measure {name}` writes it"
        ) from error
    try:
        result = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RankscopeError(
            f"not a result of `rankscope measure {name}`: {error}", path=path, hint="measure again into a new directory"
        ) from error
    if result.schema != SCHEMA or result.measurement != name:
        raise RankscopeError(
            f"{result.measurement}, schema {result.schema}; this version reads {name}, schema {SCHEMA}", path=path
        )
    return result


def load_all(folder: Path) -> list[AnyResult]:
    """All results in a directory.

    Raises:
        RankscopeError: one of them cannot be read.
    """
    kinds: list[type[AnyResult]] = [KINDS[name] for name in KINDS if path_in(folder, name).is_file()]
    return [load(kind, folder) for kind in kinds]  # type: ignore[type-var]  # each of them is one of R

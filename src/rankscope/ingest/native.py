"""The compiled reader: a JSON array of events becomes columns, without an object per event.

The library (`native/` in the repository, Rust) takes events of known categories, and declines whatever is unusual in
them (an argument of another type, a key that appears twice, a number with an exponent): that is decoded in Python.
Where the library is not there, everything is. Both ways give the same rows.

``RANKSCOPE_READER`` chooses: ``native`` insists on the library, ``python`` does without.

In: the text of an array. Out: a `Piece`, or None.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct

from rankscope.errors import ConfigError
from rankscope.ingest import event_types as ev
from rankscope.ingest.event_types import CATEGORIES
from rankscope.primitives.intervals import Int64

VARIABLE = "RANKSCOPE_READER"
"""The variable that chooses the reader: `native` or `python`."""

PHASES = ("X", "s", "t", "f", "i", "I")
LIBRARY = "librankscope_reader" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
# As in the library: `columns.rs` and `reader.rs`.
_VERSION = 3
AS_WRITTEN = "\x01"
"""A JSON value that begins with it is not compact yet."""
FIRST_ARGUMENT = 12
RANGE, ARROW, OTHER, INSTANT, MEMORY = range(5)
_BUFFERS = tuple(np.dtype(kind) for kind in ("i8", "i8", "f8", "u4", "u1"))

_TYPES: dict[object, str] = {
    int | None: "integer",
    float | None: "float",
    bool | None: "flag",
    str | None: "text",
    str | int | None: "text_or_integer",
    ev.Number: "text_or_integer",
    Raw: "json",
}


class _Buffers(ctypes.Structure):
    _fields_ = (("places", ctypes.c_void_p * 7), ("sizes", ctypes.c_size_t * 7))


@dataclass(frozen=True)
class Column:
    """Where a column is: in which buffer (integers, floats, codes, bytes), and from where on.

    Attributes:
        validity: from where on the bytes say which rows are not null; −1 if all are not.
    """

    buffer: int
    begins: int
    validity: int


@dataclass(frozen=True)
class Table:
    """The events of one table, in the order of the text.

    Attributes:
        category: the category of its events, if they have one.
        first: the index of its first group in `Piece.groups`.
        columns: by their numbers in the library.
        arguments: the numbers of the columns of arguments by the names that these have in `event_types`.
    """

    kind: int
    category: str | None
    first: int
    rows: int
    columns: dict[int, Column]
    arguments: dict[str, int]


@dataclass(frozen=True)
class Piece:
    """The columns of an array of events.

    Attributes:
        groups: phase, category and number of events, by first appearance.
        texts: distinct texts by number; the first is None, which stands for null.
        values: distinct JSON values by number, compact, a text as its content; or as written, after `AS_WRITTEN`.
        longest: the length of the longest text, bytes.
    """

    groups: list[tuple[str, str | None, int]]
    tables: list[Table]
    texts: list[str | None]
    values: list[str | None]
    longest: int
    integers: Int64
    floats: npt.NDArray[np.float64]
    codes: npt.NDArray[np.uint32]
    bytes: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Library:
    functions: ctypes.CDLL
    reader: int
    categories: list[str | None]
    arguments: dict[str | None, dict[str, int]]
    memory: dict[str, int]


def library_path() -> Path:
    """Where the library is, if it was built."""
    return Path(__file__).with_name(LIBRARY)


def wanted() -> bool:
    """Whether the compiled reader is to be used: it is there, and not switched off.

    Raises:
        ConfigError: it is asked for and not there, or the variable has another value.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "native", "python"):
        raise ConfigError(f"{VARIABLE}={choice!r}", hint="it is `native`, `python` or not set")
    if choice == "python":
        return False
    there = _library() is not None
    if choice == "native" and not there:
        raise ConfigError(
            f"{VARIABLE}=native, but {why_absent()}", hint="install rankscope where `cargo` is, or unset it"
        )
    return there


def why_absent() -> str | None:
    """Why there is no compiled reader; None if there is."""
    if not library_path().exists():
        return "the compiled reader was not built: there was no `cargo` when rankscope was installed"
    return None if _library() is not None else f"the compiled reader ({library_path()}) cannot be loaded"


def read_piece(text: bytes, *, only_memory: bool = False) -> Piece | None:
    """The events of a JSON array as columns; None if that is left to the Python reader.

    Args:
        only_memory: they are memory events without a category, as 2021's files have them; else each has a known one.
    """
    library = _library()
    if library is None:
        return None
    buffers = _Buffers()
    found = library.functions.rankscope_read(library.reader, text, len(text), only_memory, ctypes.byref(buffers))
    if not found:
        return None
    try:
        # Copies: the library's own memory is freed at once.
        places, sizes = list(buffers.places), list(buffers.sizes)
        arrays = [
            np.frombuffer(ctypes.string_at(place, size * kind.itemsize), dtype=kind)
            for place, size, kind in zip(places, sizes, _BUFFERS, strict=False)
        ]
        texts, values = (ctypes.string_at(places[at], max(0, sizes[at] - 1)).decode().split("\0") for at in (5, 6))
    finally:
        library.functions.rankscope_free(found)
    index = arrays[0].tolist()
    number_of_texts, number_of_values, longest, number_of_groups = index[:4]
    at = 4 + 3 * number_of_groups
    groups = [
        (PHASES[phase], library.categories[category], count)
        for category, phase, count in zip(index[4:at:3], index[5:at:3], index[6:at:3], strict=True)
    ]
    tables = []
    number_of_tables, at = index[at], at + 1
    for _ in range(number_of_tables):
        kind, category, first, rows, size = index[at : at + 5]
        begins, at = at + 5, at + 5 + 4 * size
        columns = {index[place]: Column(*index[place + 1 : place + 4]) for place in range(begins, at, 4)}
        name = library.categories[category]
        arguments = library.memory if kind == MEMORY else library.arguments.get(name, {})
        tables.append(Table(kind, name, first, rows, columns, arguments))
    return Piece(
        groups,
        sorted(tables, key=lambda table: (table.first, -table.kind)),
        [None, *texts] if number_of_texts else [None],
        [None, *values] if number_of_values else [None],
        longest,
        *arrays[1:],
    )


@cache
def _library() -> _Library | None:
    """The library with a reader of our events; None if it is not there, or not ours."""
    try:
        functions = ctypes.CDLL(str(library_path()))
        if functions.rankscope_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    functions.rankscope_reader.restype = functions.rankscope_read.restype = ctypes.c_void_p
    functions.rankscope_reader.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
    functions.rankscope_read.argtypes = (pointer, text, ctypes.c_size_t, number, pointer)
    functions.rankscope_free.restype = None
    functions.rankscope_free.argtypes = (ctypes.c_void_p,)
    description, kinds = _description()
    reader = functions.rankscope_reader(description, len(description))
    if not reader:
        return None
    numbers = {kind: _numbers(kind) for kind in kinds}
    return _Library(
        functions,
        reader,
        [*CATEGORIES, None],
        {category: numbers[kind] for category, kind in CATEGORIES.items() if isinstance(kind, tuple)},
        numbers[kinds[0]],
    )


Kind = tuple[type[Struct], ...]
"""Classes of arguments whose fields events have together."""


def _description() -> tuple[bytes, list[Kind]]:
    """The categories and their arguments for `rankscope_reader`, and the kinds of arguments in their order."""
    kinds: list[Kind] = [(ev.MemoryArgs,)]
    lines = []
    for category, kind in CATEGORIES.items():
        if isinstance(kind, tuple) and kind not in kinds:
            kinds.append(kind)
        how = "skipped" if kind is None else kinds.index(kind) if isinstance(kind, tuple) else "json"
        lines.append(f"category\t{category}\t{how}")
    lines.append(f"memory\t{ev.MEMORY_NAME}\t0")
    fields = []
    for kind in kinds:
        fields.append("kind")
        fields += [f"field\t{_TYPES[field.type]}\t{field.encode_name}" for field in _fields(kind)]
    return "\n".join(fields + lines).encode(), kinds


def _fields(kind: Kind) -> list[msgspec.structs.FieldInfo]:
    """The fields of a kind, each once."""
    return list({field.name: field for args in kind for field in msgspec.structs.fields(args)}.values())


def _numbers(kind: Kind) -> dict[str, int]:
    return {field.name: FIRST_ARGUMENT + index for index, field in enumerate(_fields(kind))}

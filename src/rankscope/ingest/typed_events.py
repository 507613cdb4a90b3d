"""Decode events and their arguments in one pass, if their category determines the arguments.

For most events the category (``cat``, at the front of an event) determines which arguments they have. If all events of
a text have such categories, each is decoded into its category's class, and no objects are made for the category and for
the text of the arguments. If any event differs from its class, even by an argument of another type, the text is decoded
into `event_types.Event`, which takes any JSON, so both ways give the same rows.

Kineto writes events without a category in a block at the beginning (names of threads) and at the end. The text is cut
at a guessed boundary; the guess is right exactly if all pieces decode.

In: the JSON of an array of events. Out: structs, or None if an event does not fit.
"""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from rankscope.ingest import event_types as ev
from rankscope.ingest.event_types import DEVICE_KINDS, DRIVER_CATEGORIES, RUNTIME_CATEGORIES

# Categories whose arguments are not needed, and categories whose arguments stay text.
_WITHOUT_ARGS = ("ac2g", "fwdbwd", "async", "async_gpu", "async_cpu_to_gpu")
_WITH_RAW_ARGS = ("cpu_instant_event", "overhead", "cuda_sync", "Trace", "cuda_profiler_range", "xpu_profiler_range")
# As 2020–21 files and newer ones write them.
_CAPITALIZED = {
    "kernel": "Kernel",
    "memcpy": "Memcpy",
    "memset": "Memset",
    "operator": "Operator",
    "runtime": "Runtime",
}


def _with_collective(args: type[Struct]) -> type[Struct]:
    """A class of arguments extended by those of a collective."""
    known = {arg.name: arg.encode_name for arg in msgspec.structs.fields(args)}
    for arg in msgspec.structs.fields(ev.CollectiveArgs):
        assert known.get(arg.name, arg.encode_name) == arg.encode_name, f"{arg.name} is the name of two arguments"
    added: list[Any] = [
        (arg.name, arg.type, field(name=arg.encode_name, default=arg.default))
        for arg in msgspec.structs.fields(ev.CollectiveArgs)
        if arg.name not in known
    ]
    return msgspec.defstruct(f"Collective{args.__name__}", added, bases=(args,), gc=False)


def _category(category: str, args: type | None, phases: Any) -> type[Struct]:
    """The class of a category's events."""
    fields: list[Any] = [
        ("ph", phases),
        ("name", str | None, None),
        ("pid", ev.Number, None),
        ("tid", ev.Number, None),
        ("ts", int | float),
        ("dur", float | None, None),
        ("id", ev.Number, None),
    ]
    if args is Raw:
        fields.append(("args", Raw, ev.NO_ARGS))
    elif args is not None:
        fields.append(("args", args, field(default_factory=args)))
    return msgspec.defstruct(
        f"Event[{category}]",
        fields,
        tag_field="cat",
        tag=category,
        kw_only=True,
        gc=False,
        namespace={"cat": category, "only_phase": "X" if phases is Literal["X"] else None},
    )


def category_of(kind: type) -> str:
    """The category of a class's events."""
    return cast("str", getattr(kind, "cat"))  # noqa: B009 (made by `defstruct`, which type checkers do not follow)


def is_range(kind: type) -> bool:
    """Whether a class's events are ranges, all of phase X."""
    return getattr(kind, "only_phase", None) == "X"


def arguments_of(kind: type[Struct]) -> type | None:
    """What a class's events have as arguments: a struct, `Raw`, or None if they are not needed."""
    return next((field.type for field in msgspec.structs.fields(kind) if field.name == "args"), None)


def _categories() -> list[type[Struct]]:
    device, host = _with_collective(ev.DeviceArgs), _with_collective(ev.OperatorArgs)
    args: dict[str, type] = {
        **dict.fromkeys(DEVICE_KINDS, device),
        **dict.fromkeys(RUNTIME_CATEGORIES | DRIVER_CATEGORIES, ev.RuntimeArgs),
        "cpu_op": host,
        "operator": host,
        "python_function": ev.FrameArgs,
        "user_annotation": ev.AnnotationArgs,
        "gpu_user_annotation": ev.AnnotationArgs,
    }
    args |= {_CAPITALIZED[category]: kind for category, kind in args.items() if category in _CAPITALIZED}
    return [
        *(_category(category, kind, Literal["X"]) for category, kind in args.items()),
        *(_category(category, None, Literal["s", "t", "f"]) for category in _WITHOUT_ARGS),
        *(_category(category, Raw, Literal["X", "i", "I"]) for category in _WITH_RAW_ARGS),
    ]


CATEGORIES = _categories()
"""The classes of events, one per category."""

# How Kineto begins events with a category (ranges, arrows, instants with a category) and without one (names of threads
# and processes, counters, marks).
_CATEGORIZED = rb'\{\s*"ph"\s*:\s*"(?:[Xstf]"|i"\s*,\s*"cat")'
_UNCATEGORIZED = rb'\{\s*"(?:name"|ph"\s*:\s*"(?:[MC]"|i"\s*,\s*"(?!cat")))'
_STARTS_UNCATEGORIZED = re.compile(rb"\[\s*" + _UNCATEGORIZED)
# A brace first: the search for a pattern that begins with an alternative is slow.
_NEXT_CATEGORIZED, _NEXT_UNCATEGORIZED = (
    re.compile(rb"\}\s*,\s*(?=" + begins + rb")") for begins in (_CATEGORIZED, _UNCATEGORIZED)
)
# More pieces are not worth cutting, nor are shorter ones between events without a category.
_MAX_PIECES = 9
_MIN_BYTES = 4096

_TYPED: Decoder[Any] = Decoder(list[reduce(operator.or_, CATEGORIES)], strict=False)  # type: ignore[misc]  # made at run time


def decode_typed(text: bytes) -> list[ev.Event] | None:
    """The events of a JSON array with their arguments decoded; None unless all have known categories."""
    try:
        return cast("list[ev.Event]", _TYPED.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def pieces(text: bytes, reach: int | None = None) -> list[bytes]:
    """Split a JSON array of events where events with and without a category meet.

    The boundaries are guesses: a piece need not be a valid array.

    Args:
        reach: look for events without a category only at the beginning and in this many bytes at the end.
    """
    spans: list[tuple[int, int]] = []
    without = _STARTS_UNCATEGORIZED.match(text) is not None
    start, at = 1, 0
    while len(spans) < _MAX_PIECES:
        if not without and reach is not None:
            at = max(at, len(text) - reach)
        found = (_NEXT_CATEGORIZED if without else _NEXT_UNCATEGORIZED).search(text, at)
        if found is None:
            break
        # The match begins with the brace that ends the piece.
        if spans and not without and found.start() - start < _MIN_BYTES:
            start = spans.pop()[0]
        else:
            spans.append((start, found.start() + 1))
            start = found.end()
        without, at = not without, found.end()
    if not spans:
        return [text]
    view = memoryview(text)
    return [b"".join((b"[", view[first:last], b"]")) for first, last in (*spans, (start, len(text) - 1))]

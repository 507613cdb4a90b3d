"""Parse tensor shapes, element types and launch grids, which tables keep as JSON text.

In: the text of input_dims, input_types, concrete_inputs and grid. Out: numbers of elements, names of types and their
widths; None if the text is missing or invalid.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

_SEPARATORS = re.compile(r"[\s_\-]+")
_WIDTHS = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2,
    "long": 8, "longint": 8, "int64": 8, "int": 4, "int32": 4, "short": 2, "shortint": 2, "int16": 2,
    "char": 1, "signedchar": 1, "unsignedchar": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
    "longlong": 8, "uint16": 2, "uint32": 4, "uint64": 8, "unsignedint": 4, "unsignedlong": 8, "unsignedshort": 2,
    "complexhalf": 4, "complexfloat": 8, "complexdouble": 16, "complex<float>": 8, "complex<double>": 16,
    "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip
# The types of inputs as traces write them.
_FLOATING_POINT = {
    "double": "float64",
    "float": "float32",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "c10::float8_e4m3fn": "float8",
    "c10::float8_e5m2": "float8",
    "c10::float8_e4m3fnuz": "float8",
    "c10::float8_e5m2fnuz": "float8",
}
_NOT_TENSORS = ("TensorList", "Scalar", "ScalarList")
# More elements are damage, as in the reader: in bytes, their number would not fit into 64 bits.
_MOST = 1 << 52


def parsed_list(text: str | None) -> list[Any] | None:
    """The list in a JSON text; None for no text, or another value."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def total_elements(dims: str | None, argument: int | None = None) -> int | None:
    """The elements of all tensors in a list of shapes, nested or not, or the blocks of a grid; None for none.

    An empty list is a scalar's shape, or no tensor at all, and does not count.

    Args:
        argument: count only the tensors of this argument of the operator.
    """
    shapes = parsed_list(dims)
    if shapes is None or (argument is not None and len(shapes) <= argument):
        return None

    total, left = 0, [shapes if argument is None else shapes[argument]]
    while left:
        shape = left.pop()
        if not isinstance(shape, list) or not shape:
            continue
        if all(isinstance(size, int) for size in shape):
            total += math.prod(shape)
        else:
            left += shape
    return total if 0 < total < _MOST else None


def tensor_elements(dims: str | None, argument: int) -> int | None:
    """The elements of one argument, a tensor or a list of tensors; None unless every tensor's shape is complete.

    In a list, an empty shape is a scalar and counts as one element.
    """
    shapes = parsed_list(dims)
    shape = shapes[argument] if shapes is not None and len(shapes) > argument else None
    if not isinstance(shape, list) or not shape:
        return None
    tensors = shape if all(isinstance(inner, list) for inner in shape) else [shape]
    if not all(isinstance(size, int) and 0 <= size < 1 << 40 for tensor in tensors for size in tensor):
        return None
    total = sum(math.prod(tensor) for tensor in tensors)
    return total if 0 < total < _MOST else None


def first_type(types: str | None) -> str | None:
    """The first tensor's element type in a list of argument types."""
    names = (name for name in parsed_list(types) or () if isinstance(name, str) and name)
    return next((name for name in names if name not in _NOT_TENSORS), None)


def first_argument_type(types: str | None) -> str | None:
    """The element type of the first argument; None if that is not a tensor."""
    name = next(iter(parsed_list(types) or ()), None)
    return name if isinstance(name, str) and element_bytes(name) is not None else None


@lru_cache(1 << 14)
def floating_point_type(types: str | None) -> str | None:
    """The type that an operator computes in (`float32`, `bfloat16`, …): of its first floating-point input."""
    known = (_FLOATING_POINT.get(name.lower()) for name in parsed_list(types) or () if isinstance(name, str))
    return next((name for name in known if name is not None), None)


def element_bytes(dtype: str | None) -> int | None:
    """The width of an element type as PyTorch writes it (`Float`, `c10::BFloat16`, `Float8_e4m3fn`, `long int`)."""
    if not dtype:
        return None
    plain = _SEPARATORS.sub("", dtype.lower()).removeprefix("c10::").removeprefix("torch.").removeprefix("at::")
    # PyTorch packs two four-bit elements into a byte, and counts bytes.
    if plain.startswith(("float8", "float4")):
        return 1
    return _WIDTHS.get(plain)

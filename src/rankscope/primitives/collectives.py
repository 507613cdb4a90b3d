"""The names, sizes and types of collectives, whoever wrote them."""

from __future__ import annotations

import json
import math
import re

# What the field calls them, and how NCCL, RCCL, oneCCL, Gloo and c10d write them (case, dashes and underscores aside).
# The order matters: `allreduce` before `reduce`, `reducescatter` before both.
_KINDS = (
    ("reduce_scatter", r"reducescatter"),
    ("all_reduce", r"allreduce|crossdevicereduce"),
    ("all_gather", r"allgather"),
    ("all_to_all", r"alltoall|a2a"),
    ("send_recv", r"sendrecv"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
    ("send", r"send"),
    ("recv", r"recv"),
    ("coalesced", r"coalesced"),
)
# DeepEP moves tokens to their experts and back, each way after the ranks have told one another how many.
_EXPERTS = re.compile(r"deepep|intranode|internode|nvshmem", re.IGNORECASE)
_EXPERT_KIND = re.compile("notify|dispatch|combine")
_KIND = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS))
_JOINTS = re.compile(r"[\s_\-]+")
# Namespaces in brackets, which are no parameters.
_UNNAMED = re.compile(r"\((anonymous namespace|unnamed)\)(::)?")

_WIDTHS = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2,
    "long": 8, "longint": 8, "int64": 8, "int": 4, "int32": 4, "short": 2, "shortint": 2, "int16": 2,
    "char": 1, "signedchar": 1, "unsignedchar": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
    "longlong": 8, "uint16": 2, "uint32": 4, "uint64": 8, "unsignedint": 4, "unsignedlong": 8, "unsignedshort": 2,
    "complexhalf": 4, "complexfloat": 8, "complexdouble": 16, "complex<float>": 8, "complex<double>": 16,
    "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip


_NO_TENSOR = ("TensorList", "Scalar", "ScalarList")


def collective_kind(name: str) -> str | None:
    """The collective that a name speaks of (`all_reduce`, `send_recv`, …); None if it is none of them.

    Takes c10d's names (`_allgather_base`, `allreduce_coalesced`), ranges (`gloo:all_reduce`, `nccl:send 0->1`) and
    kernels (`ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(…)`).
    """
    # What else stands in brackets are a kernel's parameters.
    plain = _JOINTS.sub("", _UNNAMED.sub("", name).split("(", 1)[0].lower())
    if _EXPERTS.search(plain) and (found := _EXPERT_KIND.search(plain)) is not None:
        return found[0]
    found = _KIND.search(plain)
    return None if found is None else found.lastgroup


def total_elements(dims: str) -> int | None:
    """The elements of all tensors in a JSON list of shapes, which may hold lists of shapes; None where there are none.

    An empty list is a scalar's shape, or no tensor at all: it counts nothing.
    """
    try:
        shapes = json.loads(dims)
    except (ValueError, RecursionError):
        return None

    def count(shape: object) -> int:
        if not isinstance(shape, list) or not shape:
            return 0
        if all(isinstance(size, int) for size in shape):
            return math.prod(shape)
        return sum(count(each) for each in shape)

    found = count(shapes)
    return found if 0 < found < 1 << 62 else None


def first_type(types: str) -> str | None:
    """The first tensor's element type in a JSON list of argument types."""
    try:
        listed = json.loads(types)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    tensors = (each for each in listed if isinstance(each, str) and each and each not in _NO_TENSOR)
    return next(tensors, None)


def element_bytes(dtype: str | None) -> int | None:
    """The width of an element type as PyTorch writes it (`Float`, `c10::BFloat16`, `Float8_e4m3fn`, `long int`)."""
    if not dtype:
        return None
    plain = _JOINTS.sub("", dtype.lower()).removeprefix("c10::").removeprefix("torch.").removeprefix("at::")
    # Two of the four-bit elements are packed into one, and PyTorch counts the packs.
    if plain.startswith(("float8", "float4")):
        return 1
    return _WIDTHS.get(plain)

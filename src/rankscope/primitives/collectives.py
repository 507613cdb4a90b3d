"""The kind of a collective from its name, as any library writes it: kernels, ranges and c10d's operators.

In: names. Out: the kind, None if it is not a collective.
"""

from __future__ import annotations

import re

# The usual names as NCCL, RCCL, oneCCL, Gloo and c10d write them, in lower case and without dashes and underscores.
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
# DeepEP moves tokens to their experts and back, each time after the ranks exchange the counts.
_EXPERTS = re.compile(r"deepep|intranode|internode|nvshmem", re.IGNORECASE)
_EXPERT_KIND = re.compile("notify|dispatch|combine")
_KIND = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS))
_SEPARATORS = re.compile(r"[\s_\-]+")
# Namespaces in brackets, which are not parameters.
_UNNAMED = re.compile(r"\((anonymous namespace|unnamed)\)(::)?")


def collective_kind(name: str) -> str | None:
    """The kind of collective that a name denotes (`all_reduce`, `send_recv`, …); None if none.

    Takes c10d's names (`_allgather_base`, `allreduce_coalesced`), ranges (`gloo:all_reduce`, `nccl:send 0->1`) and
    kernels (`ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(…)`).
    """
    # Other brackets contain a kernel's parameters.
    plain = _SEPARATORS.sub("", _UNNAMED.sub("", name).split("(", 1)[0].lower())
    if _EXPERTS.search(plain) and (found := _EXPERT_KIND.search(plain)) is not None:
        return found[0]
    found = _KIND.search(plain)
    return None if found is None else found.lastgroup

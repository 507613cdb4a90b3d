"""Why a rank did not arrive: the class of cause, from its Python stack.

The innermost frames decide. Torch's C++ code has no frames, so a call such as ``loss.item()`` or ``store.get(…)`` is
recognized by its source line, if the dump contains it. Any other code counts as Python code of the job: asleep,
computing, or in a library.

In: the stack of a training loop. Out: its class of cause, a sentence of evidence, and the place in the job's code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rankscope.answers.hang.records import RankDump
from rankscope.rundir.code_places import is_library
from rankscope.rundir.hang_dump import Frame, ThreadStack


class Cause(str, Enum):
    """Why a job hangs, or why a rank does not arrive."""

    DATA_LOADING = "data_loading"
    """The rank waits for its data."""
    HOST_SYNCHRONIZATION = "host_synchronization"
    """The rank waits for its device in a synchronizing call."""
    PYTHON_CODE = "python_code"
    """The rank sleeps or computes in code outside of torch.distributed."""
    EXCEPTION = "exception"
    """The rank has left the training loop after an exception."""
    ENDED = "ended"
    """The rank has left its training loop, or its process has ended, without a recorded exception."""
    DEAD = "dead"
    """The process shows no sign of life: killed, stopped, or it holds Python's lock."""
    DEVICE = "device"
    """The rank's device has stopped: it did not finish what the other ranks finished."""
    ABSENT = "absent"
    """Other ranks wait for the rank in ``init_process_group``, and it has neither a dump nor a heartbeat."""
    NETWORK = "network"
    """All ranks have arrived and agree, or a rank waits for the job's store."""
    MISMATCH = "mismatch"
    """The ranks called different collectives, or with different sizes or types."""
    DEADLOCK = "deadlock"
    """Ranks wait for each other in a cycle."""
    COMMUNICATION = "communication"
    """The rank waits in a call of torch.distributed. It describes one rank, and is never the cause of a hang."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Place:
    """Where a rank is, and what that means."""

    cause: Cause
    evidence: str
    frame: Frame | None = None
    """In the job's code."""
    call: str = ""
    """The function of torch.distributed that the rank is in, if it is in one."""


FAILED = "failed"
"""Begins the evidence of a rank that an exception has ended."""
_LOADERS = re.compile(r"(?:^|/)(?:torch/utils/data|webdataset|torchdata|nvidia/dali|ffcv|litdata)/")
_DISTRIBUTED = re.compile(r"(?:^|/)torch/(?:distributed|nn/parallel)/")
_STORE_FILES = re.compile(r"(?:^|/)torch/distributed/(?:rendezvous\.py|elastic/)")
INIT = "init_process_group"
_STORE_FUNCTIONS = ("_store_based_barrier", "_new_process_group_helper", "rendezvous")
_STORE_CALL = re.compile(
    r"\b(?:store\w*|\w*(?:default|dist|prefix|rdzv|tcp)_store)(?:\(\))?"
    r"\.(?:get|wait|add|set|multi_get|compare_set|check|append)\(|\bTCPStore\("
)
_SYNCHRONIZING_FILES = re.compile(r"(?:^|/)torch/(?:cuda|xpu|hpu|npu)/")
_SYNCHRONIZING_CALL = re.compile(r"\.(?:item|cpu|tolist|numpy|synchronize)\(|\bsynchronize\(|\.to\([\"']cpu")
_COLLECTIVES = frozenset(
    ("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_tensor", "all_reduce",
     "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "reduce",
     "reduce_scatter", "reduce_scatter_tensor", "scatter")
)  # fmt: skip
_WAIT_CALL = re.compile(r"\.wait\(")
_WRAPPERS = frozenset(("wrapper", "_fn", "decorate_context", "wrapped"))


def classify(stack: ThreadStack, phase: str = "", *, has_no_device: bool = False) -> Place:
    """The class of cause that a stack shows.

    Args:
        stack: of the training loop's thread, the innermost frame first.
        phase: where in its step the rank is, as the job reported it.
        has_no_device: whether there is no device to wait for.
    """
    frame = job_frame(stack)
    if stack.exception:
        return Place(Cause.EXCEPTION, f"handles {stack.exception}", _raised_at(stack))
    if not stack.frames:
        return Place(Cause.UNKNOWN, "its stack has no Python frame")
    if any(_LOADERS.search(_slashes(each.file)) for each in stack.frames):
        return Place(Cause.DATA_LOADING, "waits for the data loader", frame)
    inner = stack.frames[0]
    if any(_is_torchs(each, INIT) for each in stack.frames):
        return Place(Cause.NETWORK, "is in init_process_group", frame, INIT)
    if _is_store(stack, inner):
        return Place(Cause.NETWORK, "waits for the job's store (rendezvous or TCPStore)", frame)
    if _DISTRIBUTED.search(_slashes(inner.file)) or _is_functional(inner):
        call = _distributed_call(stack)
        return Place(Cause.COMMUNICATION, f"is in torch.distributed's {call}", frame, call)
    if is_backward(stack):
        return Place(Cause.COMMUNICATION, "is in the backward pass, where gradients are reduced", frame, "backward")
    if _WAIT_CALL.search(inner.text) and not inner.file.endswith("threading.py"):
        return Place(Cause.COMMUNICATION, "waits for an asynchronous operation", frame, "wait")
    synchronizes = _SYNCHRONIZING_FILES.search(_slashes(inner.file)) or _SYNCHRONIZING_CALL.search(inner.text)
    if synchronizes and not has_no_device:
        return Place(Cause.HOST_SYNCHRONIZATION, "waits for its device", frame)
    if phase == "data_loading":
        return Place(Cause.DATA_LOADING, "is between two steps, where it gets its data", frame)
    return Place(Cause.PYTHON_CODE, f"is in Python code, in {inner.function}", frame)


def place_of(dump: RankDump) -> Place | None:
    """Where the rank of a dump is; None if no stack of its training loop was recorded."""
    if dump.uncaught:
        return Place(Cause.EXCEPTION, f"{FAILED} with {dump.uncaught}", _first_frame(dump))
    stack = dump.training_stack
    return None if stack is None else classify(stack, dump.phase, has_no_device=dump.has_no_device)


def job_frame(stack: ThreadStack) -> Frame | None:
    """The innermost frame in the job's own code; the innermost of all if there is none."""
    own = (frame for frame in stack.frames if not is_library(frame.file))
    return next(own, stack.frames[0] if stack.frames else None)


def collective_of(stack: ThreadStack) -> str:
    """The collective of torch.distributed that a thread is in; empty if it is in none."""
    for frame in stack.frames:
        if not _DISTRIBUTED.search(_slashes(frame.file)) and not _is_functional(frame):
            break
        if frame.function in _COLLECTIVES:
            return frame.function
    return ""


def is_backward(stack: ThreadStack) -> bool:
    """Whether a thread is in the backward pass, whose collectives other threads call."""
    return bool(stack.frames) and stack.frames[0].function == "_engine_run_backward"


def call_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame of the job's own code from which a recorded call was made."""
    return job_frame(ThreadStack(frames))


def _first_frame(dump: RankDump) -> Frame | None:
    stack = dump.training_stack
    return None if stack is None else _raised_at(stack)


def _raised_at(stack: ThreadStack) -> Frame | None:
    """Where an exception was raised, if that is in the job's code; else where the thread is in it."""
    raised = stack.raised_at
    return raised if raised is not None and not is_library(raised.file) else job_frame(stack)


def _is_store(stack: ThreadStack, inner: Frame) -> bool:
    if _STORE_CALL.search(inner.text) or _STORE_FILES.search(_slashes(inner.file)):
        return True
    near = stack.frames[:4]
    return any(_is_torchs(each, *_STORE_FUNCTIONS) for each in near)


def _is_torchs(frame: Frame, *functions: str) -> bool:
    return frame.function in functions and bool(_DISTRIBUTED.search(_slashes(frame.file)))


def _is_functional(inner: Frame) -> bool:
    return _slashes(inner.file).endswith("torch/_ops.py") and "c10d" in inner.text


def _distributed_call(stack: ThreadStack) -> str:
    """The function of torch.distributed that the job called: the outermost of the innermost frames in it."""
    called = ""
    for frame in stack.frames:
        if not _DISTRIBUTED.search(_slashes(frame.file)):
            break
        if frame.function not in _WRAPPERS:
            called = frame.function
    return called or "code"


def _slashes(path: str) -> str:
    return path.replace("\\", "/")

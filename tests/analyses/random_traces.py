"""Random traces that look like a rank of a CUDA job, or of a Gloo job, with all that makes reading them hard."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests import kineto

KERNELS = (
    "gemm",
    "void at::native::reduce_kernel<512>(float*)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    "ncclDevKernel_SendRecv(ncclDevComm*)",
    "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
)
RANGES = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "## load_batch ##", "forward")
# Microseconds: small, beyond 2^42 (where a product of floats is rounded twice), and since 1970.
BASES = (0, 4_458_676_422_880, 1_700_000_000_000_000)


@st.composite
def traces(draw: st.DrawFn, *, device: bool | None = None) -> kineto.Trace:
    """A trace.

    Args:
        device: whether it has device events; None leaves it open.
    """
    base = draw(st.sampled_from(BASES))
    # A float64 since 1970 holds no nanoseconds, and files that count from there write whole microseconds.
    scale = 1 if base > 1 << 43 else 1000
    unit = st.integers(0, 400 * scale)
    length = st.integers(0, 60 * scale)
    events: list[kineto.Event] = []

    def at(ticks: int) -> float | int:
        return base + ticks if scale == 1 else (base * 1000 + ticks) / 1000

    def lasting(ticks: int) -> float | int:
        return ticks if scale == 1 else ticks / 1000

    now = 50 * scale
    for number in range(draw(st.integers(0, 4))):
        now += draw(st.integers(0, 20 * scale))
        spent = draw(st.integers(1, 80 * scale))
        events.append(kineto.step(number + 3, at(now), lasting(spent)))
        now += spent
    host = draw(st.lists(st.tuples(unit, length, st.sampled_from((100, 101, 102))), max_size=12))
    for number, (start, spent, thread) in enumerate(host):
        events.append(kineto.op("aten::mm", at(start), lasting(spent), tid=thread, external=900 + number))
    for start, spent in draw(st.lists(st.tuples(unit, length), max_size=4)):
        events.append(kineto.annotation(draw(st.sampled_from(RANGES)), at(start), lasting(spent)))
    gloo = st.tuples(unit, length, st.sampled_from((100, 201, 202)))
    for start, spent, thread in draw(st.lists(gloo, max_size=4)) if device is not True else ():
        events.append(kineto.annotation("gloo:all_reduce", at(start), lasting(spent), tid=thread))
    if device is not False:
        events += _device_events(draw, at, lasting, unit, length)
    return kineto.trace(draw(st.permutations(events)), rank=0, world_size=1)


def _device_events(draw: st.DrawFn, at: Any, lasting: Any, unit: Any, length: Any) -> list[kineto.Event]:
    events: list[kineto.Event] = []
    calls = draw(st.lists(st.tuples(unit, length), max_size=8))
    for number, (start, spent) in enumerate(calls, 1):
        events.append(kineto.launch(at(start), lasting(spent), correlation=number))
    groups = draw(st.lists(st.tuples(unit, st.sampled_from(("0", "1"))), max_size=3))
    for number, (start, group) in enumerate(groups, 1):
        metadata = {
            "Collective name": "allreduce", "In msg nelems": 8 * number, "Out msg nelems": 8 * number,
            "Group size": 2, "dtype": "Float", "Process Group Name": group, "Process Group Description": "undefined",
        }  # fmt: skip
        events.append(kineto.op("record_param_comms", at(start), lasting(5), external=number, **metadata))
    kind = st.sampled_from(("kernel", "kernel", "kernel", "collective", "memcpy", "memset"))
    # Several kernels of one launch (a graph), launches that are not in the file, streams that overlap.
    drawn = st.tuples(kind, unit, length, st.integers(0, 10), st.sampled_from((0, 7, 20)), st.integers(0, 5))
    for what, start, spent, correlation, stream, choice in draw(st.lists(drawn, max_size=20)):
        place = {"stream": stream, "correlation": correlation or None, "device": 0}
        if what == "collective":
            events.append(kineto.collective(at(start), lasting(spent), group=str(choice % 2), **place))
        elif what == "memcpy":
            events.append(kineto.memcpy(at(start), lasting(spent), **place))
        elif what == "memset":
            events.append(kineto.memset(at(start), lasting(spent), **place))
        else:
            args = {"blocks per SM": choice / 4, "est. achieved occupancy %": 10 * choice} if choice else {}
            name = KERNELS[choice % len(KERNELS)]
            events.append(kineto.kernel(name, at(start), lasting(spent), external=choice or None, **place, **args))
    return events

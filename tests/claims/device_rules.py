"""Claims about the device: its kernels, copies, number types, and how much each rank computes."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.claims.claim import Claim
from tests.claims.host_rules import (
    WORTH,
    in_steps,
    raw_steps,
    recurs,
    saves,
    saves_at_most,
    step_count,
    step_of,
    worst_of,
    worth_it,
)
from tests.claims.raw import File, Raw
from tests.claims.registry import checks
from tests.claims.spans import Span, length, less, union, within
from tests.plain_per_rank import device_of
from tests.plain_reading import Event

import rankscope


def owned(file: File, event: Event, steps: tuple[int, ...]) -> bool:
    """Whether a step launched it; in a file without steps, everything counts."""
    if not file.plain.steps:
        return True
    number = file.step_at(event.launch)
    return number is not None and (not steps or number in steps)


@checks("pageable_copies")
def pageable_copies(claim: Claim, raw: Raw) -> None:
    """Copies whose name says pageable, that steps launched, while nothing else ran on the device."""
    steps = claim.finding.steps
    exposed, calls, moved, lasted = {}, {}, {}, {}
    for rank, files in raw.files.items():
        alone = count = size = total = 0
        number = step_count(raw, rank, steps)
        copied: dict[str, list[tuple[File, Event]]] = defaultdict(list)
        for file in files:
            for event in file.plain.device:
                if "memcpy" in event.category and PAGEABLE.search(event.name) and owned(file, event, steps):
                    copied[event.name].append((file, event))
        for rows in copied.values():
            which = {(f.path, f.step_at(e.launch)) for f, e in rows if f.plain.steps}
            if which and not recurs(claim, len(which), number):
                continue
            for file, event in rows:
                others = union(e.span for e in file.plain.device if "memcpy" not in e.category)
                alone += length(less([event.span], others))
                count += 1
                size += int(event.args.get("bytes") or 0)
                total += event.end - event.start
        exposed[rank] = alone / number
        calls[rank], moved[rank], lasted[rank] = count, size, total
    step = step_of(claim, raw)
    worst = worst_of(claim, exposed)
    # Each kind of copy is rounded down.
    claim.is_near("exposed copies of pageable memory", exposed[worst], within=4)
    claim.is_near("calls", calls[worst])
    if claim.has("bandwidth"):
        claim.is_near("bandwidth", moved[worst] / lasted[worst], within=0.0051)
    saves_at_most(claim, exposed[worst], step)
    claim.require(all(exposed[r] + 4 >= WORTH * step for r in claim.finding.ranks), "a rank with too little")
    claim.share(step)


PAGEABLE = re.compile(r"pageable|\b(M2D|D2M)\b", re.IGNORECASE)


def launched_in_steps(file: File, event: Event, steps: tuple[int, ...]) -> bool:
    """Whether a kernel was launched in one of the steps, where there are steps."""
    if not file.plain.steps:
        return True
    return event.launch is not None and file.step_at(event.launch) in (steps or raw_steps(file))


@checks("low_occupancy")
def low_occupancy(claim: Claim, raw: Raw) -> None:
    """These kernels have less than one block per multiprocessor, and nothing else runs on the rest."""
    steps = claim.finding.steps
    lost: dict[int, float] = {}
    names: dict[int, dict[str, tuple[int, float, int]]] = {}
    for rank, files in raw.files.items():
        of_name: dict[str, list[tuple[Event, float]]] = defaultdict(list)
        launched_by: dict[str, set[object]] = defaultdict(set)
        for file in files:
            shared = overlapped(file)
            for event in file.computing:
                alone = event.end - event.start - within(shared[device_of(event)], *event.span)
                alone *= launched_in_steps(file, event, steps)
                blocks = float(event.args.get("blocks per SM") or 0)
                if file.step_at(event.launch) is not None:
                    launched_by[event.name].add((file.path, file.step_at(event.launch)))
                # Without a grid the field is 0 in some files: no kernel has none.
                of_name[event.name].append((event, alone * max(1 - blocks, 0) if blocks else 0.0))
        own = {}
        total = 0.0
        for name, rows in of_name.items():
            told = [(float(e.args["blocks per SM"]), e.end - e.start) for e, _ in rows if "blocks per SM" in e.args]
            weight = sum(duration for _, duration in told)
            if not weight or statistics.median(e.end - e.start for e, _ in rows) < 10_000:
                continue
            blocks = sum(each * duration for each, duration in told) / weight
            unfilled = sum(part for _, part in rows)
            once = launched_by[name] and not recurs(claim, len(launched_by[name]), step_count(raw, rank, steps))
            if blocks < 1 and unfilled >= 0.5 and not once:
                own[name] = sum(e.end - e.start for e, _ in rows), blocks, len(rows)
                total += unfilled
        names[rank] = own
        lost[rank] = total / step_count(raw, rank, steps)
    step = step_of(claim, raw)
    worst = worst_of(claim, lost)
    # Each kernel is rounded.
    claim.is_near("time without blocks, nothing else running", lost[worst], within=3, relative=1e-5)
    while claim.left:
        each = claim.take("")
        said = re.fullmatch(r"(.*): ([\d.]+) blocks per SM, ([\d,]+) calls?", each.name, re.DOTALL)
        claim.require(said, f"“{each.name}” cannot be read")
        assert said is not None
        mine = [row for name, row in names[worst].items() if name[:120] == said[1]]
        claim.require(
            any(
                row[0] == each.value
                and abs(row[1] - float(said[2])) < 0.0051
                and row[2] == int(said[3].replace(",", ""))
                for row in mine
            ),
            f"{said[1]} has {mine}, not {each.value}",
        )
    saves_at_most(claim, lost[worst] + 3, step)
    claim.is_ranks(worth_it(lost, step))


def overlapped(file: File) -> dict[Any, list[Span]]:
    """By device: when more than one of its events is running."""
    found = {}
    for device in {device_of(event) for event in file.plain.device}:
        twice: list[Span] = []
        reached = None
        for event in file.plain.device:
            if device_of(event) != device:
                continue
            if reached is not None and event.start < reached:
                twice.append((event.start, min(event.end, reached)))
            reached = event.end if reached is None else max(reached, event.end)
        found[device] = union(twice)
    return found


# -- number types ----------------------------------------------------------------------------------------------------

PEAKS: list[dict[str, Any]] = json.loads(
    (Path(rankscope.__file__).parent / "primitives" / "device_peaks.json").read_text(encoding="utf-8")
)["devices"]
"""Data, not code: from the vendors' sheets."""
NUMBERS = {
    "double": "float64", "float": "float32", "half": "float16", "c10::half": "float16", "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
}  # fmt: skip
PRODUCT = re.compile(
    r"aten::_?(add|badd)?b?mm(_activation)?_?|aten::(addbmm_?|matmul|linear|addmv_?|mv|einsum|_(scaled|int|grouped)_mm)"
    r"|aten::_?(cudnn_|miopen_|mkldnn_)?conv\w*|aten::_?scaled_dot_product\w*|aten::_(flash|efficient|cudnn)_attention\w*"
    r"|flash_attn\w*::\w+|aten::(prelu|addr|lstm\w*|gru\w*|chain_matmul|linalg_multi_dot|mkldnn_\w*|_thnn\w*|_cudnn_rnn)"
)
TENSOR = re.compile(
    r"[a-z]884|[a-z]1688|16816|16832|16864|884gemm|[hid]mma(?![a-z])|i8816|[ug]mma|tensorop|tensor\d+x\d+x\d+|nvjet"
    r"|xmma|cutlass.*sm(80|90|100)|GemmUniversal|grouped_mm|flash|fmha|sdpa|mfma|_MI\d+x\d+x\d+|xdl|gtcx\d|attn_|bwd_kernel"
    r"|first_layer_wgrad|conv1x1|conv2d_c1_k1|direct_group|dgrad_1x1",
    re.IGNORECASE,
)
PLAIN = re.compile(
    r"ffma|simt|UniversalFMA|[sdcz]gemm|[sd]cudnn|gemmSN|winograd|fft2d|(wgrad|dgrad)_(alg\d_)?engine", re.IGNORECASE
)
"""Products and convolutions on the ordinary cores: FMA, SIMT, and the BLAS's own letters for single and double."""
NONE = re.compile(r"gemv|gemmk1|splitK|^triton_|elementwise|reduce_kernel|preprocess|postprocess", re.IGNORECASE)
"""Names that are of no product, or do not tell."""


def number_of(event: Event) -> str | None:
    types = event.args.get("Input type") or []
    flat = [each for one in types for each in (one if isinstance(one, list) else [one])]
    for each in flat:
        name = str(each).lower().removeprefix("const ").strip()
        if name in NUMBERS:
            return NUMBERS[name]
        if "float8" in name:
            return "float8"
    return None


def peak(raw: Raw, number: str) -> float | None:
    names = {d.get("name") for files in raw.files.values() for file in files for d in file.devices}
    if len(names) != 1:
        return None
    found = next((e for e in PEAKS if re.search(e["name"], str(next(iter(names))), re.IGNORECASE)), None)
    return None if found is None or found.get(number) is None else float(found[number])


def products(file: File) -> list[Event]:
    """The innermost of operators that tensor cores could do."""
    outer = set()
    mine = [event for event in file.plain.operators if PRODUCT.fullmatch(event.name)]
    for event in mine:
        mother = file.parents[id(event)]
        while mother is not None:
            outer.add(id(mother))
            mother = file.parents[id(mother)]
    return [event for event in mine if id(event) not in outer]


def product_kernels(raw: Raw, rank: int) -> list[tuple[File, Event, Event]]:
    """Compute kernels with the product that launched them."""
    found = []
    for file in raw.files[rank]:
        eligible = {id(e) for e in file.plain.operators if PRODUCT.fullmatch(e.name)}
        for event in file.computing:
            owner = file.launchers[id(event)]
            while owner is not None and id(owner) not in eligible:
                owner = file.parents[id(owner)]
            if owner is not None:
                found.append((file, event, owner))
    return found


@checks("tensor_cores")
def tensor_cores(claim: Claim, raw: Raw) -> None:
    """These products really launched no kernel whose name says tensor cores, and their time bounds the saving."""
    number = claim.finding.title.split(" ")[0]
    steps = claim.finding.steps
    off, device, tensor, calls, saved = {}, {}, {}, {}, {}
    for rank in raw.ranks:
        kernels = [(f, k, o) for f, k, o in product_kernels(raw, rank) if number_of(o) == number]
        calls[rank] = sum(number_of(o) == number for file in raw.files[rank] for o in products(file))
        device[rank] = sum(k.end - k.start for _, k, _ in kernels)
        tensor[rank] = sum(k.end - k.start for _, k, _ in kernels if TENSOR.search(k.name))
        on = {id(o) for _, k, o in kernels if TENSOR.search(k.name)}
        off[rank] = sum(
            k.end - k.start
            for _, k, o in kernels
            if id(o) not in on and PLAIN.search(k.name) and not NONE.search(k.name)
        )
        saved[rank] = sum(
            k.end - k.start
            for f, k, o in kernels
            if id(o) not in on and PLAIN.search(k.name) and not NONE.search(k.name) and launched_in_steps(f, k, steps)
        )
    step = step_of(claim, raw)
    worst = max(saved, key=lambda rank: saved[rank])
    of_type = [(f, e) for f in raw.files[worst] for e in products(f) if number_of(e) == number]
    if raw.steps:
        which = {(f.path, f.step_at(e.start)) for f, e in of_type if f.step_at(e.start) is not None}
        claim.require(recurs(claim, len(which), step_count(raw, worst, steps)), "a single step has them")
    claim.is_near("operators that tensor cores can run", calls[worst])
    claim.is_near("time in their kernels", device[worst])
    claim.is_near("of which on tensor cores", tensor[worst])
    claim.is_near("products on ordinary cores", off[worst])
    claim.require(
        claim.number("in kernels whose names do not show it") <= device[worst] - tensor[worst] - off[worst],
        "more than there is",
    )
    plain, fast = peak(raw, "float32"), peak(raw, "tf32" if number == "float32" else number)
    claim.require(plain and fast, "the device's peaks are not known")
    saves_at_most(claim, saved[worst] * (1 - (plain or 0) / (fast or 1)) / step_count(raw, worst, steps), step)


@checks("precision")
def precision(claim: Claim, raw: Raw) -> None:
    """These products really take 32-bit numbers or wider, and their time bounds the saving."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    wide = ("float32", "float64")
    if claim.has("time in them"):
        host = {}
        for rank, files in raw.files.items():
            spans = [e.span for f in files for e in products(f) if number_of(e) in wide and in_steps(f, e, steps)]
            host[rank] = length(spans) / step_count(raw, rank, steps)
        worst = worst_of(claim, host)
        claim.is_near("time in them", host[worst])
        claim.require(host[worst] >= 0.5 * step, "it is not most of a step")
        claim.require(claim.finding.saving_ns is None, "nobody knows what the CPU's instructions save")
        claim.is_ranks([rank for rank, value in host.items() if value >= 0.5 * step])
        return
    device = {}
    tensor = {}
    for rank in raw.ranks:
        kernels = [(k, o) for f, k, o in product_kernels(raw, rank) if number_of(o) in wide]
        device[rank] = sum(k.end - k.start for k, _ in kernels)
        tensor[rank] = sum(k.end - k.start for k, _ in kernels if TENSOR.search(k.name))
    worst = min(rank for rank in device if device[rank] == max(device.values()))
    claim.require(claim.of_mean or not steps, "a mean is compared with the median step")
    claim.is_near("such operators", sum(number_of(o) in wide for file in raw.files[worst] for o in products(file)))
    claim.is_near("time in their kernels", device[worst])
    claim.is_near("of which on tensor cores", tensor[worst])
    unknown = claim.number("of which in kernels whose names do not show it")
    claim.require(0 <= unknown <= device[worst] - tensor[worst], "more than there is")
    saves_at_most(claim, (device[worst] - unknown) / step_count(raw, worst, steps), step)


@checks("imbalance")
def imbalance(claim: Claim, raw: Raw) -> None:
    """This rank computes more than the mean of the ranks, in most steps."""
    steps = claim.finding.steps
    by_step: dict[int | None, dict[int, int]] = defaultdict(dict)
    for rank in raw.ranks:
        if rank in raw.cut or (raw.on_device and not any(file.on_device for file in raw.files[rank])):
            continue
        for file, number, begin, end in raw.windows(rank, steps):
            by_step[number][rank] = file.part("compute", begin, end)
    (rank,) = claim.finding.ranks
    compared = {rank for row in by_step.values() for rank in row}
    whole = [row for row in by_step.values() if len(row) == len(compared)]
    leads = [row for row in whole if row[rank] == max(row.values())]
    most = statistics.median(row[rank] for row in leads)
    usual = statistics.median(statistics.fmean(row.values()) for row in leads)
    step = raw.step_ns(steps)
    claim.is_near("its compute", most)
    claim.is_near("mean over ranks", usual)
    claim.is_near("steps in which it computes longest", len(leads))
    claim.is_near("steps", len(whole))
    claim.require(len(whole) >= 3 and len(leads) >= 0.75 * len(whole), "it does not have most in most steps")
    said = re.search(r"computes (\d+) % longer", claim.finding.title)
    claim.require(said and abs(float(said[1]) - 100 * (most - usual) / usual) <= 0.51, "the title's share")
    saves(claim, most - usual, step)

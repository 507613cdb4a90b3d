"""The result of `operators` as the table that `torch.profiler`'s `key_averages().table()` prints.

The same headings, order, units and widths, so that scripts which read it keep working: percentages are of all
operators' self time, an average is total / calls. FLOPs are those of the operators that torch's profiler counts, less
its element-wise ones; `operators` itself has more of them, and sums of enclosing operators. One table per rank.

In: the frame of `operators`. Out: text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from rankscope.results import Result
from rankscope.show.report.formatting import plain

# Widths of torch's table.
_WIDTH, _NAME, _SHAPES, _STACK = 12, 55, 80, 75
# Element-wise `mul` and `add`, which torch counts as well, have no formula in `operators`.
_COUNTED_BY_TORCH = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::conv2d")
_SCALES = ((1e15, "PFLOPs"), (1e12, "TFLOPs"), (1e9, "GFLOPs"), (1e6, "MFLOPs"), (1e3, "KFLOPs"))


def key_averages(result: Result, limit: int | None = None, device: str = "CUDA", sort_by: str | None = None) -> str:
    """The table, as text that ends in a line end.

    Args:
        result: of `operators`.
        limit: rows of each rank; None for all.
        device: the device's name in the headings.
        sort_by: by what the rows are sorted (`operators --sort-by`): that column comes first, after the name.
    """
    parts = result.frame.partition_by("rank", maintain_order=True)
    texts = [_table(part, limit, device, sort_by) for part in parts]
    if len(parts) < 2:
        return texts[0] if texts else ""
    return "\n".join(f"rank {part['rank'][0]}\n{text}" for part, text in zip(parts, texts, strict=True))


def _table(frame: pl.DataFrame, limit: int | None, device: str, sort_by: str | None) -> str:
    on_device = (frame["device_self_ns"].fill_null(0) > 0).any()
    host, work = _total(frame, "host_self"), _total(frame, "device_self")
    shown = frame if limit is None else frame.head(limit)
    names = [plain(name, limit=_NAME - 3) for name in shown["name"]]
    columns: list[tuple[str, str, list[str]]] = [
        ("Name", ">", names),
        ("Self CPU %", ">", [_percent(value, host) for value in shown["host_self_ns"]]),
        ("Self CPU", ">", [_time(value) for value in shown["host_self_ns"]]),
        ("CPU total %", ">", [_percent(value, host) for value in shown["host_total_ns"]]),
        ("CPU total", ">", [_time(value) for value in shown["host_total_ns"]]),
        ("CPU time avg", ">", _means(shown, "host_total_ns")),
    ]
    if on_device:
        columns += [
            (f"Self {device}", ">", [_time(value) for value in shown["device_self_ns"]]),
            (f"Self {device} %", ">", [_percent(value, work) for value in shown["device_self_ns"]]),
            (f"{device} total", ">", [_time(value) for value in shown["device_total_ns"]]),
            (f"{device} time avg", ">", _means(shown, "device_total_ns")),
        ]
    columns.append(("# of Calls", ">", [str(calls) for calls in shown["calls"]]))
    if frame["memory_self_bytes"].null_count() < frame.height:
        columns.append(("Self Mem", ">", [_bytes(value) for value in shown["memory_self_bytes"]]))
    sorted_by = {
        "self_cpu": "Self CPU",
        "cpu": "CPU total",
        "self_device": f"Self {device}",
        "device": f"{device} total",
    }
    sorted_by |= {"count": "# of Calls", "memory": "Self Mem"}
    columns[1:] = sorted(columns[1:], key=lambda column: column[0] != sorted_by.get(str(sort_by)))
    widths = [max(min(max(map(len, names), default=0) + 4, _NAME), 4), *(_WIDTH for _ in columns[1:])]
    for name, heading, side, longest in (
        ("input_shapes", "Input Shapes", ">", _SHAPES),
        ("stack", "Source Location", "<", _STACK),
    ):
        if frame[name].null_count() < frame.height:
            texts = ["" if text is None else plain(text.replace(",", ", "), limit=longest) for text in shown[name]]
            columns.append((heading, side, texts))
            widths.append(min(max(map(len, texts), default=0) + 4, longest))
    counted = frame.filter(pl.col("name").is_in(_COUNTED_BY_TORCH) & (pl.col("flops") > 0))["flops"]
    if counted.len():
        least = float(counted.to_numpy().min())
        scale, unit = next(((scale, unit) for scale, unit in _SCALES if least >= scale), (1.0, "FLOPs"))
        flops = [
            f"{value / scale:8.3f}" if value and name in _COUNTED_BY_TORCH else "--"
            for name, value in shown.select("name", "flops").iter_rows()
        ]
        columns.append((f"Total {unit}", ">", flops))
        widths.append(_WIDTH)
    return _lines(columns, widths) + _sums(host, work if on_device else None, device)


def _lines(columns: Sequence[tuple[str, str, list[str]]], widths: Sequence[int]) -> str:
    rule = "".join("-" * width + "  " for width in widths)
    sides = [side for _, side, _ in columns]

    def line(cells: Sequence[str]) -> str:
        return "".join(f"{cell:{side}{width}}  " for cell, side, width in zip(cells, sides, widths, strict=True))

    rows = [line(row) for row in zip(*(texts for _, _, texts in columns), strict=True)]
    return "\n".join([rule, line([heading for heading, _, _ in columns]), rule, *rows, rule]) + "\n"


def _sums(host: float, work: float | None, device: str) -> str:
    total = f"Self CPU time total: {_time(host)}\n"
    return total if work is None else f"{total}Self {device} time total: {_time(work)}\n"


def _total(frame: pl.DataFrame, name: str) -> float:
    """The self time of all the rank's operators, from one row's share of it: the frame may be filtered."""
    known = frame.filter(pl.col(f"{name}_share") > 0).head(1)
    return float(known[f"{name}_ns"][0] / known[f"{name}_share"][0]) if known.height else 0.0


def _means(frame: pl.DataFrame, name: str) -> list[str]:
    return [_time(value) for value in frame[name] / frame["calls"]]


def _time(value: Any) -> str:
    microseconds = (value or 0) / 1e3
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f}s"
    return f"{microseconds / 1e3:.3f}ms" if microseconds >= 1e3 else f"{microseconds:.3f}us"


def _bytes(value: int) -> str:
    # Torch's units: powers of 1024.
    for unit, size in (("Gb", 1 << 30), ("Mb", 1 << 20), ("Kb", 1 << 10)):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value} b"


def _percent(value: Any, total: float) -> str:
    return f"{(value or 0) * 100 / total:.2f}%" if total else "NaN"

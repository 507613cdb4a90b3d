"""Writes a run's collectives as Chakra execution traces (MLCommons), the input of simulators such as ASTRA-sim.

One file per rank, ``chakra.RANK.et``: protobuf messages of Chakra's `et_def.proto`, each after its length as a varint,
first `GlobalMetadata`, then a `Node` per collective, send or receive. ``comm_groups.json`` has the ranks of each group.

In: a run. Out: files in a directory, and what could not be written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rankscope import __version__
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.errors import RankscopeError
from rankscope.primitives.communicators import parse_group_ranks
from rankscope.rundir.atomic import write_atomic

SCHEMA = "0.0.4"
_SEND, _RECV, _COLLECTIVE = 5, 6, 7
# `CollectiveCommType` of the schema.
_KINDS = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_MAX_TEXT = 4096


@dataclass
class Written:
    """What was written.

    Attributes:
        files: the traces, in the order of the ranks.
        nodes: their nodes.
        left_out: numbers of collectives that were not, by reason.
    """

    files: list[Path] = field(default_factory=list)
    nodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def write_chakra(run: Run, folder: Path) -> Written:
    """Write one trace per rank that was read, also for a rank without collectives: simulators expect all of them.

    Raises:
        RankscopeError: the files cannot be written.
    """
    results = run.analyze("collectives")
    rows = _completed(results["collectives"].frame)
    clock = clock_of(run)
    groups = _Groups()
    written = Written()
    try:
        for rank in run.ranks:
            own = rows.filter(pl.col("rank") == rank)
            starts = own.select(pl.coalesce("start_ns", "launch_ns").fill_null(0))["start_ns"].to_numpy()
            times = np.zeros(own.height, dtype=np.int64)
            for window in own["window"].unique().to_list():
                chosen = (own["window"] == window).to_numpy()
                times[chosen] = clock.ranks[rank].run_time(window, starts[chosen])
            own = own.with_columns(pl.Series("start_ns", times)).sort("start_ns", maintain_order=True)
            nodes = list(_nodes(own.iter_rows(named=True), rank, groups, written.left_out))
            path = folder / f"chakra.{rank}.et"
            write_atomic(path, b"".join([_delimited(_metadata(rank, run)), *map(_delimited, nodes)]))
            written.files.append(path)
            written.nodes += len(nodes)
        write_atomic(folder / "comm_groups.json", json.dumps(groups.ranks, indent=1) + "\n")
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=folder, hint="choose another -o") from error
    return written


def _completed(rows: pl.DataFrame) -> pl.DataFrame:
    """Collectives with sizes that another rank recorded of the same one, and whether all ranks of the group have it.

    ``partial`` is true if a rank that was read lacks it: a simulator would wait for that rank forever.
    """
    matched = pl.col("match").is_not_null()
    return (
        rows.with_columns(pl.col("group", "group_ranks").cast(pl.String))
        .with_columns(
            pl.when(matched).then(pl.coalesce(name, pl.col(name).max().over("match"))).otherwise(name).alias(name)
            for name in ("bytes", "in_elements", "out_elements")
        )
        .with_columns(pl.col("rank").n_unique().over("group", "group_ranks").alias("read"))
        .with_columns((pl.col("matched_ranks").fill_null(1) < pl.col("read")).alias("partial"))
    )


class _Groups:
    """The process groups by number: simulators read a group's name as a number.

    Attributes:
        ranks: each group's ranks, by its number as text.
    """

    def __init__(self) -> None:
        self.ranks: dict[str, list[int]] = {}
        self._numbers: dict[tuple[str, str], str] = {}

    def number(self, name: str, ranks: str | None) -> str | None:
        """The number of a group; None if its ranks are unknown."""
        listed = None if ranks is None else parse_group_ranks(ranks)
        if ranks is None or listed is None:
            return None
        number = self._numbers.setdefault((name, ranks), str(len(self._numbers)))
        self.ranks[number] = list(listed)
        return number


def _metadata(rank: int, run: Run) -> bytes:
    values = {"rank": rank, "world_size": run.world_size, "written_by": f"rankscope {__version__}"}
    attributes = (_attribute(name, value) for name, value in values.items() if value is not None)
    return b"".join([_text(1, SCHEMA), *(_message(2, attribute) for attribute in attributes)])


def _nodes(rows: Iterable[Mapping[str, Any]], rank: int, groups: _Groups, left_out: Counter[str]) -> Iterable[bytes]:
    """The nodes of one rank, each after the previous one of its stream."""
    previous: dict[object, int] = {}
    number = 0
    for row in rows:
        kind, ends = _type_of(row, rank)
        size = _input_bytes(row)
        if kind is None:
            left_out[f"{row['collective']} (Chakra has no such operation)"] += 1
            continue
        if row["partial"] and kind == _COLLECTIVE:
            left_out[f"{row['collective']} (not recorded on all ranks of its group)"] += 1
            continue
        if size is None:
            left_out[f"{row['collective']} (its size was not recorded)"] += 1
            continue
        number += 1
        group = groups.number(str(row["group"]), row["group_ranks"])
        attributes: dict[str, Any] = {
            "is_cpu_op": row["source"] == "gloo",
            "comm_type": _KINDS[row["collective"]] if kind == _COLLECTIVE else None,
            "comm_size": size,
            "pg_name": group,
            "pg_desc": row["group"],
            "involved_ranks": groups.ranks[group] if group is not None else None,
            **ends,
            "dtype": row["dtype"],
            "step": row["step"],
            "stream": row["stream"],
            "duration_ns": row["duration_ns"],
            "wait_ns": row["wait_ns"],
            "transfer_ns": row["transfer_ns"],
        }
        before = previous.get(row["stream"])
        # ASTRA-sim's feeder resolves data dependencies only, so the order on the stream is in both.
        dependencies = b"" if before is None else _message(4, _varint(before)) + _message(5, _varint(before))
        yield b"".join(
            [
                _integer(1, number),
                _text(2, str(row["name"])),
                _integer(3, kind),
                dependencies,
                _integer(6, max(round(row["start_ns"] / 1000), 0)),
                _integer(7, max(round((row["duration_ns"] or 0) / 1000), 0)),
                *(_message(10, _attribute(name, value)) for name, value in attributes.items() if value is not None),
            ]
        )
        previous[row["stream"]] = number


def _type_of(row: Mapping[str, Any], rank: int) -> tuple[int | None, dict[str, int]]:
    """A row's `NodeType`, and the ends of a send or receive; None for what Chakra cannot express."""
    if row["collective"] in _KINDS:
        return _COLLECTIVE, {}
    source, _, destination = (row["peers"] or "").partition(" → ")
    if row["collective"] not in ("send", "recv", "send_recv") or not (source.isdigit() and destination.isdigit()):
        return None, {}
    ends = {"comm_src": int(source), "comm_dst": int(destination)}
    return (_SEND if int(source) == rank else _RECV), ends


def _input_bytes(row: Mapping[str, Any]) -> int | None:
    """The bytes that the rank puts in, as Chakra's own converter counts them; `bytes` is the full size."""
    size: int | None = row["bytes"]
    if size is None:
        return 0 if row["collective"] == "barrier" else None
    if row["collective"] != "all_gather":
        return size
    elements, total = row["in_elements"], row["out_elements"]
    if elements is not None and total:
        return int(size * elements // total)
    return size // row["group_size"] if row["group_size"] else None


# -- protobuf -------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; negative ones as 64-bit two's complement."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _delimited(content)


def _delimited(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _text(number: int, value: str) -> bytes:
    return _message(number, value[:_MAX_TEXT].encode("utf-8", "replace"))


def _attribute(name: str, value: bool | int | str | list[int]) -> bytes:
    """An `AttributeProto`, with the types that Chakra's feeder reads."""
    if isinstance(value, bool):
        content = _integer(27, value)
    elif isinstance(value, int):
        # Ends are `int32_val` there, all other numbers `int64_val`.
        content = _integer(7 if name in ("comm_src", "comm_dst") else 9, value)
    elif isinstance(value, str):
        content = _text(29, value)
    else:
        content = _message(8, _message(1, b"".join(map(_varint, value))))
    return _text(1, name) + content

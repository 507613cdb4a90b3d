"""The collectives of all ranks, and which of them are one: step by step, in the order of each group, or by `Seq`.

This is simpler than what rankscope does, and knows less: ranks are matched in steps in which they have equally many
of one kind and size; then clocks are aligned by these, and what is left is matched by equal ends.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tests.claims.raw import File, Raw
from tests.claims.spans import Span
from tests.plain_collectives import collectives, elements

WIDTHS = {
    "double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "byte": 1,
    "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "unsigned char": 1, "signed char": 1,
    "c10::bfloat16": 2, "c10::half": 2, "int32": 4, "long int": 8,
}  # fmt: skip
KINDS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"), ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("sendrecv", "send_recv"),
    ("send", "send"), ("recv", "recv"), ("barrier", "barrier"), ("reduce", "reduce"), ("gather", "gather"),
    ("scatter", "scatter"),
)  # fmt: skip
P2P = ("send", "recv", "send_recv")
ROOM_NS = 100_000
"""Ends of a collective on ranks of one host differ by up to this; Gloo's a little more."""
LOOSE = (*P2P, "all_to_all", "broadcast", "reduce", "gather", "scatter", "unknown")
"""Ranks need not start and end these together."""


def kind_of(name: str) -> str:
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for word, kind in KINDS if word in plain), "unknown")


@dataclass
class Exchange:
    """One collective on one rank."""

    rank: int
    file: File
    kind: str
    group: str
    size: int | None
    members: tuple[int, ...] | None
    dtype: str | None
    sent: int | None
    got: int | None
    start: int
    end: int
    launch: int | None
    step: int | None
    sequence: int | None
    stream: Any
    peer: int | None = None
    """Of send and recv, the rank at the other end."""
    match: int | None = None

    @property
    def bytes(self) -> int | None:
        count = self.got if self.kind == "all_gather" else self.sent
        width = WIDTHS.get((self.dtype or "").lower().removeprefix("const ").strip())
        return None if count is None or width is None else count * width

    @property
    def channel(self) -> Any:
        """What its partners have too: the kind, or of send and recv from which rank to which; None if not known."""
        if self.kind not in P2P:
            return self.kind
        if self.peer is None:
            return None
        return (self.rank, self.peer) if self.kind == "send" else (self.peer, self.rank)

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def span(self) -> Span:
        return self.start, self.end

    @property
    def wall(self) -> int:
        """Its end on the host's clock."""
        return self.end + self.file.base


def offsets(rows: list[Exchange], ranks: list[int]) -> dict[int, float]:
    """What to add to each rank's wall clock, by the ends of what it shares with others; 0 for the first rank."""
    by_match: dict[int, dict[int, Exchange]] = defaultdict(dict)
    for row in rows:
        if row.match is not None and (row.kind not in LOOSE or row.kind == "all_to_all"):
            by_match[row.match][row.rank] = row
    found: dict[int, float] = {}
    if not by_match:
        return found
    for first in ranks:
        if first in found:
            continue
        found[first] = 0.0
        reached = [first]
        while reached:
            here = reached.pop()
            differences = defaultdict(list)
            for shared in by_match.values():
                if here in shared:
                    for rank, row in shared.items():
                        if rank not in found:
                            differences[rank].append(shared[here].wall - row.wall)
            for rank, each in differences.items():
                found[rank] = found[here] + statistics.median(each)
                reached.append(rank)
    return found


def members_of(text: Any) -> tuple[int, ...] | None:
    if not isinstance(text, str) or not re.fullmatch(r"\[[\d, ]+\]", text):
        return None
    return tuple(int(each) for each in text.strip("[]").split(","))


def exchanges_of(rank: int, file: File) -> list[Exchange]:
    """A file's collectives, in the order of their starts."""
    if file.on_device:
        return [
            Exchange(
                rank, file, kind_of(str(row["label"] or row["name"])), row["group"], row["group_size"],
                members_of(row["ranks"]), row["dtype"], row["in_elements"], row["out_elements"], row["start_ns"],
                row["end_ns"], row["launch_ns"], row["step"],
                row["sequence"] if row["recorded"] else None, row["stream"], row["peer"],
            )
            for row in collectives(file.plain)
        ]  # fmt: skip
    found = []
    for event in sorted([*file.plain.named, *file.plain.operators], key=lambda each: each.start):
        if not event.name.startswith("gloo:"):
            continue
        types = [t for t in event.args.get("Input type") or () if t and "List" not in str(t)]
        count = elements(event.args.get("Input Dims"))
        found.append(
            Exchange(
                rank, file, kind_of(event.name), "gloo", None, None, str(types[0]) if types else None, count, count,
                event.start, event.end, event.start, file.step_at(event.start), None, event.thread,
            )
        )  # fmt: skip
    return found


class Exchanges:
    """All of a run, matched."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.rows = [row for rank, files in raw.files.items() for file in files for row in exchanges_of(rank, file)]
        self._match()
        self._match_the_rest()
        self.matches: dict[int, list[Exchange]] = defaultdict(list)
        for row in self.rows:
            if row.match is not None:
                self.matches[row.match].append(row)

    @classmethod
    def of(cls, raw: Raw) -> Exchanges:
        """Of a run, worked out once."""
        if not hasattr(raw, "_exchanges"):
            raw._exchanges = cls(raw)  # type: ignore[attr-defined]
        found: Exchanges = raw._exchanges  # type: ignore[attr-defined]
        return found

    def _match(self) -> None:
        stepped = any(row.step is not None for row in self.rows)
        alike: dict[Any, dict[int, list[Exchange]]] = defaultdict(lambda: defaultdict(list))
        numbered: dict[Any, list[Exchange]] = defaultdict(list)
        for row in self.rows:
            if row.sequence is not None:
                numbered[row.group, row.members, row.kind, row.sequence].append(row)
            elif (row.step is not None or not stepped) and row.channel is not None:
                alike[row.step, row.group, row.members, row.channel, row.dtype, row.sent][row.rank].append(row)
        found = [rows for rows in numbered.values() if len(rows) > 1]
        for ranks in alike.values():
            if len(ranks) > 1 and len({len(rows) for rows in ranks.values()}) == 1:
                found += [list(rows) for rows in zip(*ranks.values(), strict=True)]
        for number, rows in enumerate(found, 1):
            for row in rows:
                row.match = number

    def _match_the_rest(self) -> None:
        """What is left is one where kind and size agree and it ends at one time, on clocks that the others align."""
        behind = offsets([row for row in self.rows if row.match is not None], self.raw.ranks)
        rest: dict[Any, list[Exchange]] = defaultdict(list)
        for row in self.rows:
            if row.match is None and row.rank in behind and row.channel is not None:
                rest[row.group, row.members, row.channel, row.dtype, row.sent].append(row)
        number = max((row.match or 0 for row in self.rows), default=0)
        for rows in rest.values():
            rows.sort(key=lambda row: row.wall + behind[row.rank])
            while rows:
                first = rows.pop(0)
                near = [r for r in rows if r.wall + behind[r.rank] - first.wall - behind[first.rank] <= ROOM_NS]
                near = [r for r in near if r.rank != first.rank]
                if near and len({row.rank for row in near}) == len(near):
                    number += 1
                    for row in (first, *near):
                        row.match = number
                    rows = [row for row in rows if row.match is None]

    def expected(self, row: Exchange) -> int:
        """How many ranks take part."""
        if row.kind in ("send", "recv"):
            return 2
        return row.size or max(len(self.raw.ranks), self.raw.world)

    def transfer(self, row: Exchange) -> int | None:
        """The least duration over the ranks, where all are matched and none of it is within another range."""
        if row.match is None:
            return None
        found = self.matches[row.match]
        if len({each.rank for each in found}) != self.expected(row) or len(found) != self.expected(row):
            return None
        if any(self.overlaps(each) for each in found):
            return None
        return min(each.duration for each in found)

    def overlaps(self, row: Exchange) -> bool:
        """Whether a range on the host lies over another."""
        if row.file.on_device:
            return False
        return any(
            each is not row and each.file is row.file and each.start < row.end and row.start < each.end
            for each in self.rows
        )

    def wait(self, row: Exchange) -> int | None:
        transfer = self.transfer(row)
        return None if transfer is None else row.duration - transfer

    def of_rank(self, rank: int, steps: tuple[int, ...] = ()) -> list[Exchange]:
        """A rank's, in steps where there are some."""
        return [
            row
            for row in self.rows
            if row.rank == rank and (row.step in steps if steps else row.step is not None or not self.raw.steps)
        ]

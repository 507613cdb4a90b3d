"""The raw traces of a run, read with `json` and nothing of rankscope: what claims are checked against."""

from __future__ import annotations

import json
import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from tests import plain_reading
from tests.claims.spans import Span, less, union, within
from tests.plain_per_rank import launchers, parents
from tests.plain_reading import Event, Plain, category

LOADING = re.compile(
    r"enumerate\(Data(Loader|Pipe)\)|data_?load|load(ing)?_?(data|batch)|(next|get|fetch|prefetch)_?(data|batch)"
    r"|batch_?load|data_?(fetch|wait|iter|prefetch|pipeline)|input_?pipeline",
    re.IGNORECASE,
)
"""Ranges that say that they load data."""
WAITS = re.compile(
    r"synchroni[sz]e|(event|queue|fence|commandqueue|streams?|ctx)_?host_?sync"
    r"|^(cuda|hip)Memcpy$|^hipMemcpyWithStream$|^ur(EventWait|QueueFinish)|^pi(EventsWait|QueueFinish)|^cl(WaitForEvents|Finish)",
    re.IGNORECASE,
)
"""Runtime calls that return when the device is done."""
PARTS = (
    "compute", "exposed_communication", "exposed_memcpy", "exposed_memset", "runtime", "data_loading", "host_op",
)  # fmt: skip


@dataclass
class Allocation:
    """An allocation (or, below 0, a release) on a device."""

    at: int
    bytes: int
    device: str
    allocated: int | None
    reserved: int | None
    address: Any


class File:
    """One trace."""

    is_cut = False
    """Whether the file ends before its events do; known once it is read."""

    all_steps: list[tuple[int, int, int]]
    """Number, begin and end of every step's range on the host; known once it is read."""

    def __init__(self, path: Path, incomplete: Iterable[int] = ()) -> None:
        self.path = path
        self.incomplete = set(incomplete)
        """Steps that a finding (which is checked) says hold no iteration."""

    @cached_property
    def content(self) -> dict[str, Any]:
        data = self.path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(wbits=31).decompress(data)  # of a file that is cut, as much as there is
        try:
            found: Any = json.loads(data, parse_float=Decimal, strict=False)
        except json.JSONDecodeError:
            found = _of_cut(data.decode("utf-8", "replace"))
            self.is_cut = True
        return found if isinstance(found, dict) else {"traceEvents": found}

    @cached_property
    def plain(self) -> Plain:
        found = plain_reading.read(self.content)
        numbered = [(re.fullmatch(r"ProfilerStep#(\d+)", event.name), event) for event in found.named]
        self.all_steps = [(int(match[1]), event.start, event.end) for match, event in numbered if match]
        found.steps = [step for step in found.steps if step[0] not in self.incomplete]
        return found

    @property
    def on_device(self) -> bool:
        return bool(self.plain.device)

    # -- steps -------------------------------------------------------------------------------------------------------

    @cached_property
    def windows(self) -> list[tuple[int | None, int, int]]:
        """Step, begin and end of every window."""
        return plain_reading.windows(self.plain)

    def step_at(self, instant: int | None) -> int | None:
        """The step in whose host range an instant is."""
        if instant is None:
            return None
        return next((number for number, start, end in self.plain.steps if start <= instant < end), None)

    # -- sets of time ------------------------------------------------------------------------------------------------

    @cached_property
    def layers(self) -> dict[str, list[Span]]:
        """When each part of a step's time was going on, each by itself."""
        compute, communication, memcpy, memset = plain_reading.layers_of(self.plain)
        return {
            "compute": union(compute),
            "exposed_communication": union(communication),
            "exposed_memcpy": union(memcpy),
            "exposed_memset": union(memset),
            "runtime": union(call.span for call in self.plain.calls),
            "data_loading": self.loading,
            "host_op": union(operator.span for operator in self.plain.operators),
        }

    @cached_property
    def loading(self) -> list[Span]:
        return union(event.span for event in plain_reading.loading_of(self.plain.named, LOADING))

    @cached_property
    def exclusive(self) -> dict[str, list[Span]]:
        """Each instant under the first part that it is of."""
        covered: list[Span] = []
        found = {}
        for name in PARTS:
            found[name] = less(self.layers[name], covered)
            covered = union(covered, self.layers[name])
        return found

    def part(self, name: str, start: int, end: int) -> int:
        """How long a part alone went on in a window."""
        return within(self.exclusive[name], start, end)

    @cached_property
    def busy(self) -> list[Span]:
        """When anything ran on the device."""
        return union(event.span for event in self.plain.device)

    @cached_property
    def waiting(self) -> list[Span]:
        """When the host was in a call that waits for the device."""
        return union(call.span for call in self.plain.calls if WAITS.search(call.name))

    @cached_property
    def recorded(self) -> list[Span]:
        """When the host recorded an operator or a runtime call."""
        return union(self.layers["host_op"], self.layers["runtime"])

    # -- who did what ------------------------------------------------------------------------------------------------

    @cached_property
    def computing(self) -> list[Event]:
        """Kernels that are no communication."""
        return [event for event in self.plain.device if category(event) == "compute"]

    @cached_property
    def pieces(self) -> list[Event]:
        """What a rank's work is made of: everything on the device, or operators at the top that are not Gloo's."""
        if self.on_device:
            return self.plain.device
        gloo: dict[Any, list[Span]] = defaultdict(list)
        for event in [*self.plain.named, *self.plain.operators]:
            if event.name.startswith("gloo:"):
                gloo[event.thread].append(event.span)
        return [
            event
            for event in self.plain.operators
            if event.depth == 0
            and not event.name.startswith("gloo:")
            and not any(a <= event.start < b for a, b in gloo[event.thread])
        ]

    @cached_property
    def parents(self) -> dict[int, Event | None]:
        return parents(self.plain.operators)

    @cached_property
    def launchers(self) -> dict[int, Event | None]:
        return launchers(self.plain)

    @cached_property
    def frames(self) -> list[Event]:
        """Python frames."""
        found = []
        for raw in self.content["traceEvents"]:
            if raw.get("ph") == "X" and (raw.get("cat") or "").lower() == "python_function":
                start = int(Decimal(str(raw["ts"])) * 1000)
                end = start + int(Decimal(str(raw.get("dur", 0))) * 1000)
                thread = (raw.get("pid"), raw.get("tid"))
                found.append(Event(start, end, raw.get("name", ""), "python_function", thread, raw.get("args") or {}))
        return found

    @cached_property
    def allocations(self) -> list[Allocation]:
        """In the order of time."""
        found = []
        for raw in self.content["traceEvents"]:
            if raw.get("name") != "[memory]":
                continue
            args = raw.get("args") or {}
            kind, index = args.get("Device Type", 0), args.get("Device Id", -1)
            names = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"}
            device = names.get(kind, f"type{kind}")
            device += f":{index}" if index is not None and index >= 0 else ""
            found.append(
                Allocation(
                    int(Decimal(str(raw["ts"])) * 1000), int(args.get("Bytes", 0)), device,
                    args.get("Total Allocated"), args.get("Total Reserved"), args.get("Addr"),
                )
            )  # fmt: skip
        return sorted(found, key=lambda each: each.at)

    @property
    def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.content.get("deviceProperties") or []
        return found

    @property
    def rank(self) -> int | None:
        """The rank that the trace itself says."""
        info = self.content.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) else None

    @property
    def base(self) -> int:
        """What turns its times into the host's wall clock, ns."""
        return int(self.content.get("baseTimeNanoseconds") or 0)


@dataclass
class Raw:
    """A run: its files by rank, in the order of time."""

    files: dict[int, list[File]]
    manifests: list[dict[str, Any]] = field(default_factory=list)
    unclean: frozenset[int] = frozenset()
    """Ranks that lack events by their accounts, which `tests/statements/test_account.py` compares with the files."""

    @classmethod
    def of(cls, paths: Iterable[tuple[int | None, Path, Iterable[int]]]) -> Raw:
        """The files of a run, with the ranks that they were given, and their steps without an iteration."""
        files: dict[int, list[File]] = defaultdict(list)
        folders = set()
        for rank, path, incomplete in paths:
            if not path.is_file():
                continue
            folders.add(path.parent)
            if rank is not None and not _is_snapshot(path):
                files[rank].append(File(path, incomplete))
        manifests = [json.loads(each.read_bytes()) for f in sorted(folders) for each in sorted(f.glob("ranks/*.json"))]
        return cls(dict(sorted(files.items())), manifests)

    @property
    def ranks(self) -> list[int]:
        return list(self.files)

    @cached_property
    def cut(self) -> set[int]:
        """Ranks with a file that ends too early, and those whose accounts are not clean."""
        cut = {rank for rank, files in self.files.items() for file in files if file.content and file.is_cut}
        return cut | (self.unclean & self.files.keys())

    def without_cut(self) -> Raw:
        """The ranks whose files are complete, if there are any: the others are compared with nobody."""
        kept = {rank: files for rank, files in self.files.items() if rank not in self.cut}
        if not self.cut or not kept:
            return self
        if not hasattr(self, "_complete"):
            self._complete = Raw(kept, self.manifests, self.unclean)
        return self._complete

    @property
    def on_device(self) -> bool:
        return any(file.on_device for files in self.files.values() for file in files)

    @cached_property
    def world(self) -> int:
        """The ranks that the job has, as the traces say; 0 where none does."""
        found = [file.content.get("distributedInfo") for files in self.files.values() for file in files]
        return max((each.get("world_size") or 0 for each in found if isinstance(each, dict)), default=0)

    @cached_property
    def steps(self) -> set[int]:
        """Every step that any file has."""
        return {n for files in self.files.values() for file in files for n, _, _ in file.windows if n is not None}

    def windows(self, rank: int, steps: Iterable[int] | None = None) -> list[tuple[File, int | None, int, int]]:
        """A rank's windows: those of some steps, or all. Where other files have steps, one without is not a step."""
        wanted = None if steps is None else set(steps)
        return [
            (file, number, begin, end)
            for file in self.files[rank]
            for number, begin, end in file.windows
            if (number is None and not self.steps) or (number is not None and (wanted is None or number in wanted))
        ]

    def per_step(self, rank: int, name: str, steps: Iterable[int] | None = None) -> float:
        """The median of a part of the time over a rank's windows, ns."""
        found = [file.part(name, begin, end) for file, _, begin, end in self.windows(rank, steps)]
        return statistics.median(found) if found else 0.0

    def mean_per_step(self, rank: int, name: str, steps: Iterable[int] | None = None) -> float:
        """The mean of a part of the time over a rank's windows, ns."""
        found = [file.part(name, begin, end) for file, _, begin, end in self.windows(rank, steps)]
        return statistics.fmean(found) if found else 0.0

    def step_ns(self, steps: Iterable[int] | None = None) -> float:
        """The median over steps of the slowest rank's window, ns."""
        slowest: dict[tuple[int, int | None], int] = {}
        wanted = None if steps is None else set(steps)
        for files in self.files.values():
            for place, file in enumerate(files):
                for number, begin, end in file.windows:
                    if number is None and self.steps:
                        continue
                    if wanted is None or number is None or number in wanted:
                        key = place, number
                        slowest[key] = max(slowest.get(key, 0), end - begin)
        return statistics.median(slowest.values()) if slowest else 0

    def cold_steps(self) -> set[tuple[int, int | None]]:
        """The steps, by file and number, that no mean is of: of three or more, the only one that takes over twice the
        median, or the first ones of files if no other does."""
        slowest: dict[tuple[int, int], int] = {}
        for files in self.files.values():
            for place, file in enumerate(files):
                for number, begin, end in file.windows:
                    if number is not None:
                        slowest[place, number] = max(slowest.get((place, number), 0), end - begin)
        if len(slowest) < 3:
            return set()
        long = {key for key, length in slowest.items() if length > 2 * statistics.median(slowest.values())}
        later = [
            (place, number)
            for place, number in long
            if any(key < (place, number) and key[0] == place for key in slowest.keys() - long)
        ]
        return {*long} if len(long) == 1 or not later else set()

    def mean_step_ns(self) -> float:
        """The mean window of the rank with the longest, ns: what the job takes per step."""
        windows = {rank: [end - begin for _, _, begin, end in self.windows(rank)] for rank in self.files}
        return max((statistics.fmean(each) for each in windows.values() if each), default=0.0)

    def longest_ns(self) -> int:
        """The longest window of any rank, ns."""
        return max((e - b for files in self.files.values() for f in files for _, b, e in f.windows), default=0)


def _of_cut(text: str) -> Any:
    """A trace up to its last complete event."""
    end = len(text)
    while (end := text.rfind("}", 0, end)) > 0:
        for close in ("]}", "]"):
            try:
                return json.loads(text[: end + 1] + close, parse_float=Decimal, strict=False)
            except json.JSONDecodeError:
                continue
    return {"traceEvents": []}


def _is_snapshot(path: Path) -> bool:
    return "pickle" in path.name


def mean(values: Mapping[int, float]) -> float:
    return statistics.fmean(values.values()) if values else 0.0

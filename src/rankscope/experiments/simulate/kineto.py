"""Kineto's JSON: trace events as structs, and their text in the layout of torch 2.13, of torch 2.9, or compact.

In: lists of :class:`Span`, :class:`Flow` and :class:`Naming`, whose times are text: microseconds with three decimals,
as Kineto writes them. Out: bytes of a file. Each event ends with a comma, so the last one of a file is in ``foot``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import msgspec

from rankscope.experiments.simulate.jitter import I64

SLOT = "<slot>"
"""A number that is filled in later, in the fields and arguments of an event (`Layout.slotted`)."""

LAYOUTS = ("torch-2.13", "torch-2.9", "compact")


class Span(msgspec.Struct, gc=False):
    """A complete event (``"ph": "X"``)."""

    cat: str
    name: str
    pid: int
    tid: int
    ts: str
    dur: str
    args: dict[str, object]


class Flow(msgspec.Struct, gc=False):
    """One end of an arrow: it starts (``s``) or finishes (``f``)."""

    ph: str
    id: int | str
    pid: int
    tid: int
    ts: str
    name: str


class Naming(msgspec.Struct):
    """A metadata event (``"ph": "M"``): the name of a process or thread, or its position."""

    name: str
    pid: int
    tid: int
    ts: str
    args: dict[str, object]


Event = Span | Flow | Naming


@dataclass(frozen=True)
class _Formats:
    """The text of each part of a file; values follow the fields of the structs above."""

    head: str
    device: str
    metadata: str
    span: str
    flow: str
    bind: str
    """What follows the name of a flow's end."""
    naming: str
    foot: str


_TORCH_2_13 = _Formats(
    head=' {\n    "schemaVersion": 1,\n    "deviceProperties": [%s\n    ],\n    \n%s'
    '    "displayTimeUnit": "ms",\n    "baseTimeNanoseconds": %d,\n    "traceEvents": [\n    \n',
    device="\n    {\n      %s\n    }",
    metadata='      "%s": %s,\n',
    span='  {\n    "ph": "X",\n    "cat": "%s",\n    "name": "%s",\n    "pid": %d,\n    "tid": %d,\n'
    '    "ts": %s,\n    "dur": %s\n    ,\n    "args": {\n      %s\n    }\n  },\n',
    flow='  {\n    "ph": "%s",\n    "id": %s,\n    "pid": %d,\n    "tid": %d,\n    "ts": %s,\n    "cat": "%s",\n'
    '    "name": "%s"\n    %s\n  },\n',
    bind=', "bp": "e"',
    naming='  {\n    "ph": "M",\n    "name": "%s",\n    "ts": %s,\n    "pid": %d,\n    "tid": %d,\n'
    '    "args": {\n      %s\n    }\n  },\n',
    foot='  {\n    "ph": "X",\n    "cat": "Trace",\n    "name": "PyTorch Profiler (0)",\n    "pid": "Spans",\n'
    '    "tid": "PyTorch Profiler",\n    "ts": %s,\n    "dur": %s\n    ,\n    "args": {\n      "Op count": 0\n    }\n'
    '  },\n  {\n    "ph": "M",\n    "name": "process_sort_index",\n    "ts": %s,\n    "pid": "Spans",\n    "tid": 0,\n'
    '    "args": {\n      "sort_index": 536870912\n    }\n  },\n'
    '  {\n    "ph": "i",\n    \n    "s": "g",\n    "name": "Iteration Start: PyTorch Profiler",\n'
    '    "pid": "Traces",\n    "tid": "Trace PyTorch Profiler",\n    "ts": %s\n    \n  },\n'
    '  {\n    "ph": "i",\n    \n    "s": "g",\n    "name": "Record Window End",\n'
    '    "pid": "",\n    "tid": "",\n    "ts": %s\n    \n  }\n  ],"traceName": "%s" }',
)
_TORCH_2_9 = _Formats(
    head='\n  {\n    "schemaVersion": 1,\n    "deviceProperties": [%s\n    ],%s\n'
    '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": %d,\n  "traceEvents": [\n',
    device="\n    {\n      %s\n    }",
    metadata='\n      "%s": %s,',
    span='  {\n    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,\n    "ts": %s, "dur": %s,\n'
    '    "args": {\n      %s\n    }\n  },\n',
    flow='  {\n    "ph": "%s", "id": %s, "pid": %d, "tid": %d, "ts": %s,\n    "cat": "%s", "name": "%s"%s\n  },\n',
    bind=', "bp": "e"',
    naming='  {\n    "name": "%s", "ph": "M", "ts": %s, "pid": %d, "tid": %d,\n    "args": {\n      %s\n    }\n  },\n',
    foot='  {\n    "ph": "X", "cat": "Trace", "ts": %s, "dur": %s,\n    "pid": "Spans", "tid": "PyTorch Profiler",\n'
    '    "name": "PyTorch Profiler (0)",\n    "args": {\n      "Op count": 0\n    }\n  },\n'
    '  {\n    "name": "process_sort_index", "ph": "M", "ts": %s,\n    "pid": "Spans", "tid": 0,\n'
    '    "args": {\n      "sort_index": 536870912\n    }\n  },\n'
    '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
    '    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": %s\n  },\n'
    '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
    '    "pid": "", "tid": "", "ts": %s\n  }\n  ],\n  "traceName": "%s"\n}',
)


def _without_spaces(text: str) -> str:
    """JSON without the white space between its parts."""
    return re.sub(r'("[^"]*")|\s+', lambda match: match[1] or "", text)


_FORMATS = {
    "torch-2.13": _TORCH_2_13,
    "torch-2.9": _TORCH_2_9,
    "compact": _Formats(*map(_without_spaces, astuple(_TORCH_2_9))),
}


class Layout:
    """One of the layouts."""

    def __init__(self, name: str) -> None:
        self.names_first = name == "torch-2.13"
        """Whether the names of processes and threads come before the events, or after them."""
        self._formats = _FORMATS[name]
        self._indent = -1 if name == "compact" else 0

    def _json(self, value: object) -> str:
        return msgspec.json.format(_encode(value), indent=self._indent).decode()

    def head(self, devices: Sequence[dict[str, object]], metadata: Mapping[str, object], base_ns: int) -> bytes:
        """Everything before the events."""
        formats = self._formats
        properties = ",".join([formats.device % self._json(device)[1:-1] for device in devices])
        entries = "".join([formats.metadata % (name, self._json(value)) for name, value in metadata.items()])
        return (formats.head % (properties, entries, base_ns)).encode()

    def events(self, events: Sequence[Event]) -> bytes:
        """The text of events. Their names hold nothing that JSON would escape."""
        span, flow, naming, bind = self._formats.span, self._formats.flow, self._formats.naming, self._formats.bind
        args = iter(self._args([e.args for e in events if not isinstance(e, Flow)]))
        texts = []
        for e in events:
            if isinstance(e, Span):
                texts.append(span % (e.cat, e.name, e.pid, e.tid, e.ts, e.dur, next(args)))
            elif isinstance(e, Flow):
                texts.append(flow % (e.ph, e.id, e.pid, e.tid, e.ts, e.name, e.name, bind if e.ph == "f" else ""))
            else:
                texts.append(naming % (e.name, e.ts, e.pid, e.tid, next(args)))
        return "".join(texts).encode()

    def slotted(self, event: Event) -> str:
        """The text of an event for the operator ``%``: ``%s`` at each of its :data:`SLOT`, in the order of the text."""
        text = self.events([event]).decode().replace("%", "%%")
        return text.replace(f'"{SLOT}"', "%s").replace(SLOT, "%s")

    def _args(self, args: list[dict[str, object]]) -> list[str]:
        """The text of each event's arguments, without the braces."""
        between = "},{" if self._indent else "}, {"
        # One call for all is faster. No argument is an object, and no text in one looks like the end of an object.
        return self._json(args)[2:-2].split(between)

    def foot(self, start: str, length: str, end: str, trace_name: str) -> bytes:
        """The last events and what follows them."""
        return (self._formats.foot % (start, length, start, start, end, trace_name)).encode()


_encode = msgspec.json.Encoder().encode


def microseconds(nanoseconds: int) -> str:
    """A time or duration as Kineto writes it."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


_DECIMALS = [f".{i:03d}" for i in range(1000)]


def many_microseconds(nanoseconds: I64) -> list[str]:
    """Many times or durations as Kineto writes them."""
    whole = nanoseconds // 1000
    decimals = (nanoseconds - whole * 1000).tolist()
    return [f"{us}{_DECIMALS[ns]}" for us, ns in zip(whole.tolist(), decimals, strict=True)]

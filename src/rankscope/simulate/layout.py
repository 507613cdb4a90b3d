"""How Kineto lays out its JSON, byte for byte: today's (torch 2.13), the one before it, and compact.

Events come with marks for what is filled in later (see ``cells``); the text of an event ends with a comma and a line
break, which is why a file ends with the one event that is not followed by any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from rankscope.simulate.cells import Event, t

LAYOUTS = ("torch-2.13", "torch-2.9", "compact")
_OUTSIDE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


def squeeze(text: str) -> str:
    """JSON without the white space between its parts."""
    return _OUTSIDE.sub(lambda match: match[1] or "", text)


class Layout:
    """One of the layouts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = name == "torch-2.13"
        self.compact = name == "compact"

    def _done(self, text: str) -> str:
        return squeeze(text) if self.compact else text

    def event(self, event: Event) -> str:
        """The text of one event."""
        if event.phase == "X":
            return self.span(
                event.category,
                event.name,
                event.pid,
                event.tid,
                t(event.start),
                f"\x01d{event.start},{event.end}\x01",
                event.args,
            )
        binding = ', "bp": "e"' if event.phase == "f" else ""
        if self.lines:
            tail = f"    {binding}\n" if binding else "    \n"
            return (
                f'  {{\n    "ph": "{event.phase}",\n    "id": {event.flow_id},\n    "pid": {event.pid},\n'
                f'    "tid": {event.tid},\n    "ts": {t(event.start)},\n    "cat": "{event.category}",\n'
                f'    "name": "{event.name}"\n{tail}  }},\n'
            )
        return self._done(
            f'  {{\n    "ph": "{event.phase}", "id": {event.flow_id}, "pid": {event.pid}, "tid": {event.tid}, '
            f'"ts": {t(event.start)},\n    "cat": "{event.category}", "name": "{event.name}"{binding}\n  }},\n'
        )

    def span(self, category: str, name: str, pid: str, tid: str, ts: str, dur: str, args: str) -> str:
        """A complete event."""
        if self.lines:
            tail = f'\n    ,\n    "args": {{\n      {args}\n    }}' if args else "\n    "
            return (
                f'  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": "{name}",\n    "pid": {pid},\n'
                f'    "tid": {tid},\n    "ts": {ts},\n    "dur": {dur}{tail}\n  }},\n'
            )
        tail = f',\n    "args": {{\n      {args}\n    }}' if args else ""
        return self._done(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {ts}, "dur": {dur}{tail}\n  }},\n'
        )

    def naming(self, name: str, pid: str, tid: str, ts: str, key: str, value: str | int) -> str:
        """A metadata event (the name of a process or thread, its place)."""
        if self.lines:
            return (
                f'  {{\n    "ph": "M",\n    "name": "{name}",\n    "ts": {ts},\n    "pid": {pid},\n    "tid": {tid},\n'
                f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'
            )
        return self._done(
            f'  {{\n    "name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'
        )

    def header(self, devices: str, metadata: Mapping[str, str], base_ns: int) -> str:
        """Everything before the events; ``metadata`` maps names to JSON text."""
        if self.lines:
            lines = "".join(f'      "{name}": {value},\n' for name, value in metadata.items())
            return (
                f' {{\n    "schemaVersion": 1,\n    "deviceProperties": [{devices}\n    ],\n    \n{lines}'
                f'    "displayTimeUnit": "ms",\n    "baseTimeNanoseconds": {base_ns},\n    "traceEvents": [\n    \n'
            )
        lines = "".join(f'\n      "{name}": {value},' for name, value in metadata.items())
        return self._done(
            f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [{devices}\n    ],{lines}\n'
            f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {base_ns},\n  "traceEvents": [\n'
        )

    def footer(self, start: str, length: str, end: str, trace_name: str) -> str:
        """The last events and what follows them."""
        profiler = "PyTorch Profiler"
        if self.lines:
            return (
                self.span("Trace", f"{profiler} (0)", '"Spans"', f'"{profiler}"', start, length, '"Op count": 0')
                + self.naming("process_sort_index", '"Spans"', "0", start, "sort_index", 536870912)
                + f'  {{\n    "ph": "i",\n    \n    "s": "g",\n    "name": "Iteration Start: {profiler}",\n'
                f'    "pid": "Traces",\n    "tid": "Trace {profiler}",\n    "ts": {start}\n    \n  }},\n'
                f'  {{\n    "ph": "i",\n    \n    "s": "g",\n    "name": "Record Window End",\n'
                f'    "pid": "",\n    "tid": "",\n    "ts": {end}\n    \n  }}\n  ],"traceName": "{trace_name}" }}'
            )
        return self._done(
            f'  {{\n    "ph": "X", "cat": "Trace", "ts": {start}, "dur": {length},\n'
            f'    "pid": "Spans", "tid": "{profiler}",\n    "name": "{profiler} (0)",\n'
            f'    "args": {{\n      "Op count": 0\n    }}\n  }},\n'
            f'  {{\n    "name": "process_sort_index", "ph": "M", "ts": {start},\n    "pid": "Spans", "tid": 0,\n'
            f'    "args": {{\n      "sort_index": 536870912\n    }}\n  }},\n'
            f'  {{\n    "name": "Iteration Start: {profiler}", "ph": "i", "s": "g",\n'
            f'    "pid": "Traces", "tid": "Trace {profiler}", "ts": {start}\n  }},\n'
            f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
            f'    "pid": "", "tid": "", "ts": {end}\n  }}\n  ],\n  "traceName": "{trace_name}"\n}}'
        )


def device_properties(count: int) -> str:
    """What Kineto says of the host's devices."""
    return ",".join(
        f'\n    {{\n      "id": {i}, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028372480,\n'
        '      "computeMajor": 9, "computeMinor": 0,\n'
        '      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,\n'
        '      "regsPerBlock": 65536, "warpSize": 32,\n'
        '      "sharedMemPerBlock": 49152, "numSms": 132\n'
        '    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472\n'
        "    }"
        for i in range(count)
    )


def microseconds(nanoseconds: int) -> str:
    """A time or duration as Kineto writes it: microseconds with three decimals."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"

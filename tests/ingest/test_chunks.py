"""Cutting a trace into chunks gives what reading it whole gives, in every layout that is valid JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kineto import kernel, small_step, trace

from rankscope.errors import NotATraceError
from rankscope.ingest.chunks import EventStream
from rankscope.ingest.salvage import Losses

FIELDS = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "id")

# What looks like a boundary between events, or like their end, and is not.
TRAPS = [
    "}, {",
    '}, {"ph": "X"',
    '"}, {"',
    "}],",
    '}], "traceName": "x"}',
    '"traceEvents": [',
    "\\",
    '\\"',
    "[",
    "]",
    "{",
    "\u2028é𝄞",
    "",
    " \t\n",
    "NaN",
    "void f<a, b>({lambda(int)#1}, {default arg#1})",
]
texts = st.one_of(st.sampled_from(TRAPS), st.text(max_size=12), st.builds("".join, st.lists(st.sampled_from(TRAPS))))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(-1e9, 1e9), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
times = st.one_of(st.integers(0, 2**50), st.integers(0, 2**52).map(lambda n: n / 1000))
events = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "i", "C", "s", "f", "M", "B", "E"])},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "python_function", "ac2g", "other"]),
        "name": texts,
        "ts": times,
        "dur": times,
        "pid": st.one_of(st.integers(-1, 2**40), st.sampled_from(["Spans", "Traces"])),
        "tid": st.one_of(st.integers(0, 2**40), st.just("PyTorch Profiler (0)")),
        "id": st.integers(0, 2**31),
        "args": st.dictionaries(texts, values, max_size=5),
        "nested": st.lists(st.dictionaries(texts, values, max_size=3), max_size=6),
        "bp": st.just("e"),
    },
).map(lambda made: dict(sorted(made.items(), key=lambda item: hash(item[0]) % 7)))
metadata = st.dictionaries(
    st.one_of(st.sampled_from(["schemaVersion", "deviceProperties", "traceName", "displayTimeUnit"]), texts).filter(
        lambda key: key != "traceEvents"
    ),
    values,
    max_size=4,
)


def read(text: bytes, chunk_bytes: int, piece: int = 1 << 20) -> tuple[list[dict[str, Any]], dict[str, object], Losses]:
    """The events as dicts, the metadata and the losses."""
    source = io.BytesIO(text)
    stream = EventStream(lambda size: source.read(min(size, piece)), "a trace", chunk_bytes)
    found = []
    for chunk in stream:
        for event in chunk.decoded().events:
            seen = {name: getattr(event, name) for name in FIELDS if getattr(event, name) is not None}
            args = json.loads(bytes(event.args))
            found.append({**seen, **({"args": args} if args else {})})
    return found, stream.metadata, stream.losses


def expected(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            key: value
            for key, value in event.items()
            if (key in FIELDS and value is not None) or (key == "args" and value)
        }
        for event in made
    ]


def lay_out(
    made: list[dict[str, Any]],
    before: dict[str, Any],
    after: dict[str, Any],
    layout: str,
) -> bytes:
    """A trace as JSON, as one producer or another writes it."""
    escape = layout == "ascii"
    dump = lambda value, **how: json.dumps(value, ensure_ascii=escape, **how)  # noqa: E731
    if layout == "compact":
        text = dump({**before, "traceEvents": made, **after}, separators=(",", ":"))
    elif layout in ("plain", "ascii"):
        text = dump({**before, "traceEvents": made, **after})
    elif layout == "indented":
        text = dump({**before, "traceEvents": made, **after}, indent=4)
    elif layout == "bare":
        text = dump(made)
    elif layout == "bom":
        text = "\ufeff" + dump({**before, "traceEvents": made, **after})
    elif layout == "crlf":
        text = dump({**before, "traceEvents": made, **after}, indent=1).replace("\n", "\r\n")
    else:  # as Kineto itself writes: an object over several lines, keys by hand, commas where they fall
        head = "".join(f"\n  {dump(key)}: {dump(value)}," for key, value in before.items())
        body = "},\n  {".join(
            "\n    " + ",\n    ".join(f"{dump(key)}: {dump(value)}" for key, value in event.items()) + "\n  "
            for event in made
        )
        array = f"\n  {{{body}}}" if made else ""
        comma = "," if layout == "kineto-trailing-comma" and made else ""
        tail = "".join(f",\n  {dump(key)}: {dump(value)}" for key, value in after.items())
        text = f'{{{head}\n  "traceEvents": [{array}{comma}\n  ]{tail}\n}}\n'
    return text.encode("utf-8", "surrogatepass")


LAYOUTS = ["compact", "plain", "ascii", "indented", "bare", "bom", "crlf", "kineto", "kineto-trailing-comma"]


@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=() if each in ("compact", "kineto") else pytest.mark.slow) for each in LAYOUTS]
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    made=st.lists(events, max_size=12),
    before=metadata,
    after=metadata,
    chunk_bytes=st.sampled_from([1, 50, 200, 1000, 1 << 20]),
    piece=st.sampled_from([7, 64, 1 << 20]),
)
def test_chunks_equal_a_whole_reading(
    layout: str, made: list[Any], before: dict[str, Any], after: dict[str, Any], chunk_bytes: int, piece: int
) -> None:
    text = lay_out(made, before, after, layout)
    found, keys, losses = read(text, chunk_bytes, piece)
    assert found == expected(made)
    assert losses == Losses()
    if layout != "bare":
        assert keys == {**before, **after}


def test_key_of_the_events_inside_the_metadata() -> None:
    text = json.dumps({"note": 'say "traceEvents": [1]', "more": {"traceEvents": [{"no": 1}]}, **trace(small_step())})
    found, keys, losses = read(text.encode(), 100)
    assert found == expected(small_step())
    assert keys["more"] == {"traceEvents": [{"no": 1}]}
    assert losses == Losses()


def test_the_key_straddles_the_first_block() -> None:
    for size in range((64 << 10) - 30, (64 << 10) + 10, 3):
        text = json.dumps({"pad": "x" * size, **trace(small_step())}).encode()
        found, _, losses = read(text, 1000)
        assert found == expected(small_step())
        assert losses == Losses()


def test_one_event_greater_than_many_chunks() -> None:
    made = [kernel("a", 1, 2), kernel("}, {" * 3000, 3, 4, nested=[{"ph": "X"}] * 2000), kernel("b", 5, 6)]
    found, _, losses = read(json.dumps(trace(made)).encode(), 500)
    assert found == expected(made)
    assert losses == Losses()


@pytest.mark.parametrize("events_text", ["null", "[]", "[ ]", "[\n]"])
def test_no_events(events_text: str) -> None:
    found, keys, losses = read(f'{{"schemaVersion": 1, "traceEvents": {events_text}, "a": 1}}'.encode(), 100)
    assert (found, keys, losses) == ([], {"schemaVersion": 1, "a": 1}, Losses())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("hello", "not JSON: it starts with 'hello'"),
        ("<html>", "not JSON"),
        ("[1, 2, 3]", "array of something else"),
        ('"text"', "not JSON"),
        ("{", "ends before its first event"),
        ('{"schemaVersion": 1,', "ends before its first event"),
        ("{}", "no `traceEvents`"),
        ('{"a": 1, "b": [1]}', "no `traceEvents` \\(it has 'a', 'b'\\)"),
        ('{"a": 1 "b"}', "not JSON"),
        ('{"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1}]}', "execution trace"),
        ('{"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1}', "execution trace"),
    ],
)
def test_refused_with_the_right_words(text: str, why: str) -> None:
    with pytest.raises(NotATraceError, match=why) as caught:
        read(text.encode(), 100)
    assert caught.value.path == "a trace"
    assert caught.value.hint


def test_a_great_file_that_is_no_trace_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.ingest.chunks.MAX_METADATA_BYTES", 1 << 20)
    taken = 0

    def endless(size: int) -> bytes:
        nonlocal taken
        taken += size
        return b'{"a": "' if taken == size else b"a" * size

    with pytest.raises(NotATraceError, match="no `traceEvents` in its first"):
        list(EventStream(endless, "a trace"))
    assert taken < 64 << 20

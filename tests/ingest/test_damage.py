"""A damaged trace gives what can be read of it; what is lost is counted; nothing crashes."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.test_chunks import expected, read
from tests.kineto import collective, dumps, event, frame, kernel, launch, memory, op, small_step, step, trace, write

from rankscope.errors import NotATraceError
from rankscope.ingest.kineto import KinetoTrace, read_kineto
from rankscope.ingest.salvage import Losses


def text_with_ends(made: list[dict[str, Any]], indent: int | None) -> tuple[bytes, list[int], int]:
    """A trace as JSON, where each of its events ends in it, and where the array does."""
    text = '{"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}], "traceEvents": ['
    ends = []
    for number, each in enumerate(made):
        text += ("," if number else "") + ("\n  " if indent else " ") + json.dumps(each, indent=indent)
        ends.append(len(text))
    text += "\n]"
    closed = len(text)
    return (text + ', "traceName": "a]}, {b", "baseTimeNanoseconds": 17}').encode(), ends, closed


@pytest.mark.parametrize("chunk_bytes", [150, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_cut_at_every_byte(indent: int | None, chunk_bytes: int) -> None:
    made = [step(1, 0, 9), kernel('"}, {"', 1, 2, stacks=[{"a": 1}, {"b": []}]), op("aten::mm", 1, 2, dims=[[1], [2]])]
    text, ends, closed = text_with_ends(made, indent)
    first = text.index(b'"traceEvents": [') + 16
    for cut in range(len(text)):
        whole = [each for each, end in zip(made, ends, strict=True) if end <= cut]
        try:
            found, _, losses = read(text[:cut], chunk_bytes)
        except NotATraceError as error:
            assert not whole, cut
            assert error.hint
            continue
        assert found == expected(whole), cut
        assert losses.truncated, cut
        assert losses.reason, cut
        # An event that began is a loss, a comma or a bracket is none.
        begun = cut < ends[-1] and text[max([first, *(end for end in ends if end <= cut)]) : cut].strip(b" \n,")
        assert losses.events == bool(begun), cut
        if cut >= closed:
            assert losses.events == 0
    found, keys, losses = read(text, chunk_bytes)
    assert (found, losses) == (expected(made), Losses())
    assert keys["baseTimeNanoseconds"] == 17


def test_metadata_before_a_cut_is_kept() -> None:
    text, _, closed = text_with_ends(small_step(), None)
    _, keys, losses = read(text[:-3], 200)
    assert keys["traceName"] == "a]}, {b"
    assert losses.metadata
    assert losses.truncated
    _, keys, _ = read(text[: closed - 40], 200)
    assert keys["deviceProperties"] == [{"id": 0}, {"id": 1}]


def damaged(number: int, old: str, new: str, chunk_bytes: int = 400) -> tuple[list[dict[str, Any]], Losses]:
    """Three kernels `k0`, `k1`, `k2` and an end to the file, with one text of one of them replaced."""
    made = [json.dumps(kernel(f"k{index}", index, 1, correlation=index)) for index in range(3)]
    assert old in made[number]
    made[number] = made[number].replace(old, new, 1)
    text = '{"traceEvents": [' + ", ".join(made) + '], "traceName": "x", "deviceProperties": [{"id": 0}, {"id": 1}]}'
    found, keys, losses = read(text.encode("utf-8", "surrogateescape"), chunk_bytes)
    assert keys.keys() == {"traceName", "deviceProperties"}
    return found, losses


BROKEN = [
    ('"ph": "X"', '"ph" "X"'),
    ('"ph": "X"', '"ph": X'),
    ('"name": "k', '"name": "k" "'),
    ('"name": ', '"name": \\'),
    ('"ts": ', '"ts": --'),
    ('"args": {', '"args": ['),
    ('"args": {', '"args": {{'),
    ('"args": {', '"args": '),
    ('"stream"', '"stream'),
    ('"dur": 1', '"dur": 01'),
]


@pytest.mark.parametrize("chunk_bytes", [100, 250, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("old", "new"), BROKEN)
def test_one_broken_event_costs_itself_alone(old: str, new: str, number: int, chunk_bytes: int) -> None:
    found, losses = damaged(number, old, new, chunk_bytes)
    assert [each["name"] for each in found] == [f"k{index}" for index in range(3) if index != number]
    assert losses.events == 1
    assert losses.lost_bytes > 50
    assert not losses.truncated
    assert losses.reason


MENDED = [
    ('"k', '"\\x', "\\xk"[:2]),
    ('"k', '"\udcff', "\ufffd"),
    ('"k', '"\\ud800', "\ufffd"),
    ('"k', '"\\udc00\\ud800', "\ufffd\ufffd"),
    ('"k', '"a\nb', "a\nb"),
    ('"k', '"\x00', "\x00"),
]


@pytest.mark.parametrize("chunk_bytes", [100, 250, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("old", "new", "shown"), MENDED)
def test_bad_text_is_repaired(old: str, new: str, shown: str, number: int, chunk_bytes: int) -> None:
    found, losses = damaged(number, f"{old}{number}", f"{new}{number}", chunk_bytes)
    assert [each["name"] for each in found] == [f"{shown if i == number else 'k'}{i}" for i in range(3)]
    assert losses.events == 0
    assert losses.repaired >= 1
    assert not losses.truncated


@pytest.mark.parametrize("word", ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_numbers_that_are_none_become_null(word: str, number: int) -> None:
    found, losses = damaged(number, f'"correlation": {number}', f'"correlation": {word}')
    assert [each["name"] for each in found] == ["k0", "k1", "k2"]
    assert found[number]["args"]["correlation"] is None
    assert losses.repaired == 1
    found, losses = damaged(number, '"dur": 1', f'"dur": {word}')
    assert "dur" not in found[number]


def test_stray_brackets_and_values_between_events() -> None:
    one, two, three = (json.dumps(kernel(name, 1, 1)) for name in "abc")
    for between in ("], ", "5, ", "null, ", "[1], ", '"text", ', "}, ", ", ,"):
        for chunk_bytes in (60, 1 << 20):
            text = f'{{"traceEvents": [{one}, {between}{two}, {three}], "traceName": "x"}}'
            found, keys, losses = read(text.encode(), chunk_bytes)
            assert [each["name"] for each in found] == ["a", "b", "c"], between
            assert losses.events == (0 if between == ", ," else 1), between
            assert not losses.truncated
            assert keys == {"traceName": "x"}


def test_an_event_without_an_end_does_not_swallow_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.ingest.chunks.MAX_EVENT_BYTES", 2000)
    made = [json.dumps(kernel(f"k{index}", index, 1)) for index in range(200)]
    made[50] = made[50].replace('"args": {', '"args": {"a": [{')
    text = '{"traceEvents": [' + ", ".join(made) + "]}"
    for chunk_bytes in (300, 1 << 20):
        found, _, losses = read(text.encode(), chunk_bytes)
        assert len(found) == 199
        assert losses.events == 1


def test_an_event_greater_than_any_real_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.ingest.chunks.MAX_EVENT_BYTES", 5000)
    text = json.dumps(trace([kernel("a", 1, 1), kernel("x" * 300_000, 1, 1), kernel("b", 2, 1), kernel("c", 2, 1)]))
    found, _, losses = read(text.encode(), 500)
    assert [each["name"] for each in found][-1:] == ["c"]
    assert losses.events >= 1
    assert losses.lost_bytes > 200_000


def test_the_metadata_before_the_events_is_damaged() -> None:
    text = json.dumps({"distributedInfo": {"rank": 3, "world_size": 4}, "bad": 1, **trace(small_step())})
    found, keys, losses = read(text.replace('"bad": 1', '"bad": 1x').encode(), 300)
    assert found == expected(small_step())
    assert keys == {"distributedInfo": {"rank": 3, "world_size": 4}}
    assert losses.metadata
    assert not losses.truncated


@pytest.mark.parametrize("chunk_bytes", [300, 4 << 20])
@pytest.mark.parametrize("between", ["", '"a": {"traceEvents": [1]}, ', '"traceEvents": null, "b": 2, '])
def test_every_array_of_events_is_read(tmp_path: Path, between: str, chunk_bytes: int) -> None:
    one, two, three = small_step(), small_step(100, 2, correlation=4), small_step(200, 3, correlation=8)
    text = (
        f'{{"before": 1, "traceEvents": {json.dumps(one)}, {between}"traceEvents": {json.dumps(two, indent=2)}, '
        f'"traceEvents" : [], "traceEvents": {json.dumps(three)}, "traceName": "t"}}'
    )
    found = read_kineto(str(write(tmp_path / "t.json", text.encode(), None)), chunk_bytes=chunk_bytes)
    plain = Counter((event["ph"], event.get("cat")) for event in [*one, *two, *three])
    assert found.counts == plain
    assert found.metadata["before"] == 1
    assert found.metadata["traceName"] == "t"
    assert found.losses == Losses()
    assert found.odd["further arrays called traceEvents"] == 3


def test_the_second_array_may_come_behind_null(tmp_path: Path) -> None:
    text = f'{{"traceEvents": null, "a": 1, "traceEvents": {json.dumps(small_step())}}}'
    found = read_kineto(str(write(tmp_path / "t.json", text.encode(), None)))
    assert sum(found.counts.values()) == len(small_step())
    assert found.metadata == {"a": 1}


def test_a_second_array_that_breaks_off(tmp_path: Path) -> None:
    text = f'{{"traceEvents": {json.dumps(small_step())}, "traceEvents": {json.dumps(small_step(100, 2))}'
    found = read_kineto(str(write(tmp_path / "t.json", text[:-20].encode(), None)))
    assert found.losses.truncated
    assert sum(found.counts.values()) == 2 * len(small_step()) - 1


def test_zeros_and_blanks_after_the_end() -> None:
    text = json.dumps(trace(small_step())).encode()
    for rest in (b"\0" * 5000, b"\n\n  ", b"\r\n\0\0"):
        found, _, losses = read(text + rest, 300)
        assert found == expected(small_step())
        assert losses == Losses()


def tables_of(tmp_path: Path, *events: dict[str, Any], **metadata: Any) -> KinetoTrace:
    return read_kineto(str(write(tmp_path / "t.json", trace(list(events), **metadata))))


WRONG: list[Any] = [
    None,
    True,
    [],
    [1],
    {},
    {"a": 1},
    "",
    "text",
    "12",
    -5,
    1.5,
    2**63,
    2**64,
    -(2**70),
    1e300,
    10**400,
]
FIELDS = ["cat", "name", "ts", "dur", "pid", "tid", "id", "args", "bp", "ph"]
MAKERS = {
    "kernel": kernel("k", 1, 2, correlation=1, external=1),
    "op": op("aten::mm", 1, 2, external=1, dims=[[1]]),
    "launch": launch(1, 2, correlation=1),
    "frame": frame("f.py(1): f", 1, 2, python_id=1),
    "annotation": step(1, 1, 2),
    "memory": memory(1, 512, allocated=512, reserved=1024),
    "counter": event("c", 1, ph="C", args={"v": 1}),
    "flow": event("f", 1, ph="s", id=1, cat="ac2g"),
    "track": event("process_name", None, ph="M", args={"name": "python"}),
    "begin": event("b", 1, ph="B"),
    "end": event("b", 2, ph="E"),
    "instant": event("i", 1, ph="i", s="g"),
    "other": event("sync", 1, 2, cat="cuda_sync"),
    "collective": collective(1, 2, sequence=1),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_field_of_any_type_breaks_nothing(tmp_path: Path, kind: str, field: str) -> None:
    good = kernel("good", 5, 1)
    for value in WRONG:
        found = tables_of(tmp_path, MAKERS[kind], {**MAKERS[kind], field: value}, good)
        assert "good" in found.tables["device_events"]["name"].to_list(), value
        assert sum(found.counts.values()) + found.losses.events >= 3, value
        rows = sum(frame.height for name, frame in found.tables.items() if name != "collectives")
        unsaid = sum(found.counts.values()) + found.losses.events - rows - found.odd["ends without a begin"]
        # A begin and its end are one row; the number of a thread with a text as id is one more.
        assert unsaid <= 3 or found.losses.events, (value, found.counts, found.losses, found.odd)


@pytest.mark.parametrize("kind", ["kernel", "op", "launch", "frame", "annotation", "memory", "track", "collective"])
def test_an_argument_of_any_type_breaks_nothing(tmp_path: Path, kind: str) -> None:
    whole = MAKERS[kind]
    for name in whole.get("args") or {"External id": 0}:
        for value in WRONG:
            found = tables_of(tmp_path, whole, {**whole, "args": {**(whole.get("args") or {}), name: value}}, whole)
            table = next(n for n, f in found.tables.items() if f.height and n != "collectives")
            assert found.tables[table].height == 3
            assert found.losses.events == 0


def test_arguments_that_are_not_an_object_are_counted(tmp_path: Path) -> None:
    found = tables_of(tmp_path, kernel("a", 1, 2, stream=3), {**kernel("b", 2, 2), "args": [1]})
    # The track that a kernel is on is its stream.
    assert found.tables["device_events"]["stream"].to_list() == [3, 7]
    assert found.odd["arguments that cannot be read"] == 1
    found = tables_of(tmp_path, kernel("a", 1, 2), {**kernel("b", 2, 2), "name": 5})
    assert found.odd["events with a field of an unexpected type"] == 1


def test_deep_nesting_is_lost_and_counted(tmp_path: Path) -> None:
    deep = json.dumps(kernel("deep", 1, 2)).replace(
        '"args": {', '"args": {"x": ' + "[" * 100_000 + "]" * 100_000 + ", "
    )
    text = f'{{"traceEvents": [{json.dumps(kernel("a", 1, 1))}, {deep}, {json.dumps(kernel("b", 2, 1))}]}}'
    found = read_kineto(str(write(tmp_path / "t.json", text)))
    assert found.tables["device_events"]["name"].to_list() == ["a", "b"]
    assert found.losses.events == 1


def test_events_without_a_time_are_lost_and_counted(tmp_path: Path) -> None:
    odd = [{**kernel("a", 1, 1), "ts": ts} for ts in (None, "soon", 1e40, "nan", float("inf"))]
    text = json.dumps({"traceEvents": [*odd, kernel("b", 5, 1)]})
    found = read_kineto(str(write(tmp_path / "t.json", text)))
    assert found.tables["device_events"]["name"].to_list() == ["b"]
    assert found.losses.events == 5
    assert found.losses.reason == "events without a time, or 52 days from the others"
    assert found.counts["X", "kernel"] == 6


def test_more_categories_than_any_trace_has(tmp_path: Path) -> None:
    made = [event("x", index, 1, cat=f"category {index}") for index in range(5000)]
    found = tables_of(tmp_path, *made)
    assert found.tables["other_events"].height == 5000


@pytest.mark.slow
def test_random_flips_and_splices_never_crash(tmp_path: Path) -> None:
    base = dumps(trace(small_step() + small_step(100, 2, correlation=4), rank=0, world_size=2), indent=1)
    source = random.Random(7)
    for round_ in range(400):
        text = bytearray(base)
        for _ in range(source.randint(1, 6)):
            at, size = source.randrange(len(text)), source.randint(1, 200)
            kind = source.choice(["flip", "cut", "double", "noise"])
            if kind == "flip":
                text[at] ^= 1 << source.randrange(8)
            elif kind == "cut":
                del text[at : at + size]
            elif kind == "double":
                text[at:at] = text[at // 2 : at // 2 + size]
            else:
                text[at:at] = source.randbytes(size // 10)
        try:
            found = read_kineto(
                str(write(tmp_path / "t.json", bytes(text), None)), chunk_bytes=source.choice([300, 4096])
            )
        except NotATraceError:
            continue
        assert sum(found.counts.values()) <= 3 * 24, round_


def test_a_gzip_cut_anywhere(tmp_path: Path) -> None:
    made = small_step() + small_step(100, 2, correlation=4)
    packed = gzip.compress(dumps(trace(made)))
    for cut in range(0, len(packed) - 1, 7):
        try:
            found = read_kineto(str(write(tmp_path / "t.json.gz", packed[:cut], None)))
        except NotATraceError as error:
            assert error.hint
            continue
        assert found.losses.truncated
        assert sum(found.counts.values()) <= len(made)


@pytest.mark.parametrize(
    "between", ["}\n{", ', "a": {broken, ', ', "a": 1 2, '], ids=["two files in one", "damaged", "two"]
)
def test_events_behind_what_is_damaged_are_counted_as_lost(tmp_path: Path, between: str) -> None:
    first, second = ([kernel(f"kernel {number}", 1, 1)] for number in range(2))
    text = f'{{"traceEvents": {json.dumps(first)}{between}"traceEvents": {json.dumps(second)}}}'
    found = read_kineto(str(write(tmp_path / "t.json", text.encode())))
    assert sum(found.counts.values()) == 1
    assert found.losses.events == 1
    assert found.losses.lost_bytes > len(json.dumps(second))

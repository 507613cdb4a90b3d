"""Edits of a saved trace, compared with the same edits of the complete file in memory."""

from __future__ import annotations

import io
import json
import random

import pytest

from rankscope.capture import trace_edits
from rankscope.capture.trace_edits import Edits, apply_changes

FRAME = """  {
    "ph": "X",
    "cat": "%s",
    "name": "%s",
    "pid": 7,
    "tid": %d,
    "ts": %.3f,
    "dur": %.3f
    ,
    "args": {
      "Python id": 1
    }
  },
"""
BEGAN, ENDED = 1000.0, 3000.0


def kineto(events):
    """As Kineto writes it: operators and steps, then the frames, then the end."""
    return ('{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + "".join(FRAME % e for e in events) + "  {}\n]}").encode()


def steps():
    return [("user_annotation", f"ProfilerStep#{n}", 7, BEGAN + 500 * n, 500.0) for n in range(4)]


def frames(count, seed, threads=1):
    draw = random.Random(seed)
    return [
        ("python_function", f'f{n}.py(1): "g"'.replace('"', "'") * draw.randint(1, 4), t, draw.uniform(0, 4000), d)
        for n in range(count)
        for t, d in [(draw.randrange(threads), draw.choice([1.0, 80.0, 2500.0]))]
    ]


def outside(event):
    return event[0] == "python_function" and (event[3] > ENDED or event[3] + event[4] < BEGAN)


@pytest.mark.parametrize("chunk", [64, 1000, 8192, 1 << 20])
@pytest.mark.parametrize("order", ["in time", "by thread", "any"])
def test_frames_outside_the_steps_are_removed_and_no_others(monkeypatch, chunk, order):
    monkeypatch.setattr(trace_edits, "CHUNK", chunk)
    monkeypatch.setattr(trace_edits, "_LARGEST_FRAME", 600)
    made = frames(400, chunk, threads=3)
    if order != "any":
        made.sort(key=lambda e: (e[2] if order == "by thread" else 0, e[3]))
    # Rounded as the file has it.
    made = [(c, n, t, round(at, 3), round(d, 3)) for c, n, t, at, d in made]
    source = io.BytesIO(kineto(steps() + made))
    result = b"".join(apply_changes(source, Edits(frames=True).changes(source)))
    assert result == kineto(steps() + [e for e in made if not outside(e)])
    assert 50 < sum(map(outside, made)) < 350


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_all_edits_at_once(monkeypatch, chunk):
    monkeypatch.setattr(trace_edits, "CHUNK", chunk)
    made = sorted(frames(100, 3), key=lambda e: e[3])
    source = io.BytesIO(kineto(steps() + made))
    result = b"".join(apply_changes(source, Edits(3, '"ours": {"a": 1}', frames=True).changes(source)))
    trace = json.loads(result)
    assert next(iter(trace)) == "ours"
    names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    assert names == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "PartialStep#3"]
    assert sum(e.get("cat") == "python_function" for e in trace["traceEvents"]) == sum(not outside(e) for e in made)


def test_without_steps_or_edits_nothing_changes():
    text = kineto(frames(30, 1))
    for asked in (Edits(), Edits(frames=True), Edits(partial_step=2)):
        source = io.BytesIO(text)
        assert b"".join(apply_changes(source, asked.changes(source))) == text


def test_where_every_frame_is_inside_none_is_parsed(monkeypatch):
    monkeypatch.setattr(trace_edits, "CHUNK", 4096)
    looked = []
    original = trace_edits._frames_outside
    monkeypatch.setattr(
        trace_edits,
        "_frames_outside",
        lambda source, region, window: looked.append(region) or original(source, region, window),
    )
    made = [("python_function", "f", 1, 1000.0 + n, 1.0) for n in range(1000)]
    text = kineto(steps() + made)
    monkeypatch.setattr(trace_edits, "_LARGEST_FRAME", 500)
    source = io.BytesIO(text)
    assert Edits(frames=True).changes(source) == []
    assert sum(end - begin for begin, end in looked) < len(text) / 5

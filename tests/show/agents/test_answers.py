"""Bounds of answers, and checks of arguments: whatever is in a trace, an answer stays small, inert and valid JSON."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.show.agents.answers import MAX_CHARACTERS, Answer, Rows, as_text, to_json
from rankscope.show.agents.arguments import Argument, read_arguments, schema_of
from rankscope.show.agents.toolbox import TOOLS

COLUMN = [{"name": "name", "unit": "", "doc": "a name"}]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=30), inner, max_size=8),
    max_leaves=60,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=20), values, max_size=8), st.lists(values, max_size=40))
def test_any_value_is_bounded_and_inert(data: dict[str, Any], rows: list[Any]) -> None:
    text = as_text(to_json(Answer(data, Rows(COLUMN, rows, len(rows)))))
    assert len(text) <= MAX_CHARACTERS
    assert json.loads(text)["untrusted"]
    assert not [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_large_data_and_rows_are_cut_and_say_so() -> None:
    rows = [["k" * 3000, number] for number in range(1000)]
    deep: dict[str, Any] = {"deep": {"names": ["n" * 900] * 900}}
    value = to_json(Answer(deep, Rows(COLUMN, rows, 5000, offset=200)))
    assert len(as_text(value)) <= MAX_CHARACTERS
    shown = len(value["rows"])
    assert 1 < shown < 1000
    assert [row[1] for row in value["rows"]] == list(range(shown))
    assert value["rows"][0][0] == "k" * 399 + "…"
    assert any(f"call again with offset={200 + shown}" in note for note in value["notes"])
    assert any("are cut" in note for note in value["notes"])
    assert value["total_rows"] == 5000


def test_the_next_offset_leads_through_all_rows() -> None:
    """Reading on as the notes say gives every row once."""
    rows = [["k" * 350, number] for number in range(300)]
    seen: list[int] = []
    while True:
        part = to_json(Answer({}, Rows(COLUMN, rows[len(seen) :], len(rows), len(seen))))
        seen += [row[1] for row in part["rows"]]
        if not part["notes"] or not any("offset=" in note for note in part["notes"]):
            break
        assert f"offset={len(seen)} " in next(note for note in part["notes"] if "offset=" in note)
    assert seen == list(range(300))


def test_a_small_answer_is_not_changed() -> None:
    value = to_json(Answer({"step_ns": 5, "unknown": None, "ratio": 0.5}, Rows(COLUMN, [["gemm", 0]], 1)))
    assert value["data"] == {"step_ns": 5, "unknown": None, "ratio": 0.5}
    assert value["rows"] == [["gemm", 0]]
    assert value["notes"] == []


def test_nan_and_infinity_become_unknown() -> None:
    assert to_json(Answer({"a": float("nan"), "b": [float("inf")]}))["data"] == {"a": None, "b": [None]}


ARGUMENTS = (
    Argument("text", "text", "a text", "x", choices=("x", "y")),
    Argument("number", "integer", "a number", 3, low=1, high=9),
    Argument("flag", "flag", "a flag", False),
    Argument("ranks", "integers", "ranks"),
    Argument("names", "texts", "names"),
    Argument("options", "values", "options"),
    Argument("must", "text", "needed", required=True),
)


def test_valid_arguments_and_defaults() -> None:
    assert read_arguments(ARGUMENTS, {"must": "a", "ranks": [0, 3], "options": {"by": "shape", "n": 3}}) == {
        "text": "x", "number": 3, "flag": False, "ranks": [0, 3], "names": None, "options": {"by": "shape", "n": 3},
        "must": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"text": "z"}, {"text": 3}, {"number": 0}, {"number": 10}, {"number": 2.5}, {"number": True}, {"number": "3"},
        {"flag": 1}, {"flag": "true"}, {"ranks": 3}, {"ranks": [-1]}, {"ranks": ["0"]}, {"ranks": [0] * 2000},
        {"names": "a"}, {"names": [1]}, {"options": []}, {"options": {"a": [1]}}, {"must": "m" * 5000}, {"must": None},
        {"other": 1}, {"__class__": "x"},
    ],
)  # fmt: skip
def test_invalid_arguments_are_errors_that_name_them(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"argument '?{next(iter(bad))}"):
        read_arguments(ARGUMENTS, {"must": "a", **bad})


def test_the_schema_forbids_what_the_check_refuses() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of(ARGUMENTS)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"must": "a", "ranks": [1]}, schema)
    for bad in ({}, {"must": "a", "other": 1}, {"must": "a", "number": 10}, {"must": "a", "text": "z"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_every_tool_and_argument_is_described() -> None:
    for tool in TOOLS.values():
        assert len(tool.doc) > 30
        assert all(each.doc.endswith(".") for each in tool.arguments), tool.name
        assert len({each.name for each in tool.arguments}) == len(tool.arguments)

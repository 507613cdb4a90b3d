"""Expressions that choose ranks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.rundir.ranks import parse_ranks

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def chosen(expression, size=16, per_node=4):
    choice = parse_ranks(expression)
    return [r for r in range(size) if choice.selects(r, r % per_node)]


@pytest.mark.parametrize(
    ("expression", "ranks"),
    [
        ("all", list(range(16))),
        ("0, 2, 4", [0, 2, 4]),
        ("0-3", [0, 1, 2, 3]),
        (" 1 - 2 ,7", [1, 2, 7]),
        ("every:8", [0, 8]),
        ("node", [0, 4, 8, 12]),
        ("NODE, 1", [0, 1, 4, 8, 12]),
        ("0,4-7", [0, 4, 5, 6, 7]),
        ("every:8,0-1", [0, 1, 8]),
        ("none", []),
        ("3", [3]),
        (3, [3]),
        ([1, 5], [1, 5]),
        (range(0, 16, 5), [0, 5, 10, 15]),
        ([], []),
        ((r for r in (2, 2)), [2]),
    ],
)
def test_expressions(expression, ranks):
    assert chosen(expression) == ranks


@pytest.mark.parametrize(
    "expression",
    ["", " ", ",", "0,,1", "a", "-1", "3-1", "every:0", "every:", "every:-2", "0..3", "0;1", "1.5", "0-", "none,1",
     "every:x", [-1], [1.0], [True], True, 1.5, ["0"], None],
)  # fmt: skip
def test_nonsense_is_refused(expression):
    with pytest.raises(ConfigError):
        parse_ranks(expression)


parts = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6)


@calm
@given(parts, st.booleans(), st.integers(0, 9))
def test_an_expression_chooses_the_union_of_its_parts(spans, spaces, every):
    texts = [str(a) if a == b else f"{min(a, b)}-{max(a, b)}" for a, b in spans]
    expected = {r for a, b in spans for r in range(min(a, b), max(a, b) + 1)}
    if every:
        texts.append(f"every:{every}")
        expected |= set(range(0, 50, every))
    joined = (" , " if spaces else ",").join(texts)
    assert set(chosen(joined, size=50)) == {r for r in expected if r < 50}


@calm
@given(st.sets(st.integers(0, 200)))
def test_a_list_chooses_itself(ranks):
    assert set(chosen(sorted(ranks), size=201)) == ranks


def test_odd_choices_are_said_by_rank_0_alone():
    choice = parse_ranks("0-3,9")
    assert "3, 9" in choice.doubts(0, 0, 2)[0]
    assert choice.doubts(1, 1, 2) == []
    assert parse_ranks("0-1").doubts(0, 0, 2) == []
    assert "node" in parse_ranks("node").doubts(0, None, 4)[0]

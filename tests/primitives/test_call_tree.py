"""Call trees against a recursive one in plain Python."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.call_tree import (
    CallTree,
    call_tree,
    combined,
    inverted,
    largest,
    preorder,
    shared_name,
    within,
)

Call = tuple[int, int, int, int]  # thread, start, end, name
Path = tuple[int, ...]


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Properly nested calls of some threads, in any order."""
    made: list[Call] = []

    def grow(thread: int, start: int, end: int, depth: int) -> None:
        at = start
        while at < end and len(made) < 40 and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            made.append((thread, first, last, draw(st.integers(0, 3))))
            if depth < 4:
                grow(thread, first, last, depth + 1)
            at = last

    for thread in range(draw(st.integers(1, 3))):
        grow(thread, 0, 60, 0)
    # Which of two equal ranges is outside is a matter of order.
    unique = {call[:3]: call for call in made}
    return draw(st.permutations(list(unique.values())))


def tree_of(made: list[Call]) -> CallTree:
    columns = np.array(made, dtype=np.int64).reshape(-1, 4)
    return call_tree(*columns.T)


def paths(tree: CallTree) -> list[Path]:
    found: list[Path] = []
    for parent, name in zip(tree.parent.tolist(), tree.name.tolist(), strict=True):
        found.append((*found[parent], name) if parent >= 0 else (name,))
    return found


def instants(made: list[Call]) -> tuple[dict[Path, int], dict[Path, int]]:
    """Self and total time of each path: one nanosecond at a time, what is open then."""
    own: dict[Path, int] = defaultdict(int)
    total: dict[Path, int] = defaultdict(int)
    for thread in {call[0] for call in made}:
        for at in range(60):
            is_open = [call for call in made if call[0] == thread and call[1] <= at < call[2]]
            is_open.sort(key=lambda call: (call[1], -call[2]))
            path = tuple(call[3] for call in is_open)
            if path:
                own[path] += 1
            for depth in range(len(path)):
                total[path[: depth + 1]] += 1
    return own, total


def as_dict(tree: CallTree, field: str) -> dict[Path, int]:
    return {path: value for path, value in zip(paths(tree), getattr(tree, field).tolist(), strict=True) if value}


@given(calls())
def test_as_one_instant_after_another(made: list[Call]) -> None:
    tree = tree_of(made)
    own, total = instants(made)
    assert len(set(paths(tree))) == tree.parent.size
    assert as_dict(tree, "self_ns") == own
    assert as_dict(tree, "total_ns") == total
    assert tree.calls.sum() == len(made)
    assert tree.depth.tolist() == [len(path) - 1 for path in paths(tree)]


@given(calls(), st.integers(-1, 60), st.integers(0, 61))
def test_a_range_has_what_is_in_it(made: list[Call], low: int, length: int) -> None:
    columns = np.array(made, dtype=np.int64).reshape(-1, 4)
    rows = within(columns[:, 1], columns[:, 2], low, low + length)
    cut = columns[rows]
    cut[:, 1:3] = np.clip(cut[:, 1:3], low, low + length)
    wanted = [call for call in made if call[1] < low + length and call[2] > low]
    assert sorted(map(tuple, columns[rows].tolist())) == sorted(wanted)
    # Cut to the range, two calls can be equal: the instants tell their order by what they were.
    order = np.lexsort((-columns[rows][:, 2], columns[rows][:, 1]))
    tree = call_tree(*cut[order].T)
    own: dict[Path, int] = defaultdict(int)
    for thread in {call[0] for call in made}:
        for at in range(max(low, 0), min(low + length, 60)):
            path = tuple(
                call[3]
                for call in sorted(made, key=lambda call: (call[1], -call[2]))
                if call[0] == thread and call[1] <= at < call[2]
            )
            if path:
                own[path] += 1
    assert as_dict(tree, "self_ns") == own


@given(calls(), calls())
def test_added_up(one: list[Call], other: list[Call]) -> None:
    trees = [tree_of(one), tree_of(other)]
    both, nodes = combined(trees)
    moved = [(thread + 10, *rest) for thread, *rest in other]
    wanted = tree_of([*one, *moved])
    for field in ("calls", "self_ns", "total_ns"):
        assert as_dict(both, field) == as_dict(wanted, field)
    for tree, node in zip(trees, nodes, strict=True):
        assert [paths(both)[place] for place in node.tolist()] == paths(tree)


@given(calls())
def test_inverted(made: list[Call]) -> None:
    tree = tree_of(made)
    wanted: dict[Path, int] = defaultdict(int)
    for path, time in as_dict(tree, "self_ns").items():
        for length in range(1, len(path) + 1):
            wanted[path[::-1][:length]] += time
    turned = inverted(tree)
    assert as_dict(turned, "total_ns") == as_dict(turned, "self_ns") == wanted
    top = turned.depth == 0
    assert turned.total_ns[top].sum() == tree.self_ns.sum()
    assert turned.calls[top].sum() == len(made)


@given(calls(), st.integers(0, 40))
def test_the_largest_nodes_are_a_tree(made: list[Call], limit: int) -> None:
    tree = tree_of(made)
    kept = largest(tree.total_ns, limit)
    assert kept.size == min(limit, tree.parent.size)
    assert {int(tree.parent[node]) for node in kept} - {-1} <= set(kept.tolist())
    rest = np.setdiff1d(np.arange(tree.parent.size), kept)
    assert not rest.size or not kept.size or tree.total_ns[kept].min() >= tree.total_ns[rest].max()


@given(calls())
def test_preorder(made: list[Call]) -> None:
    tree = tree_of(made)

    def visit(parent: int) -> list[int]:
        children = [node for node in range(tree.parent.size) if tree.parent[node] == parent]
        children.sort(key=lambda node: (-int(tree.total_ns[node]), node))
        return [each for node in children for each in (node, *visit(node))]

    assert preorder(tree, tree.total_ns).tolist() == visit(-1)


def test_a_call_without_duration_is_counted() -> None:
    tree = tree_of([(0, 0, 10, 1), (0, 4, 4, 2)])
    assert paths(tree) == [(1,), (1, 2)]
    assert (tree.calls.tolist(), tree.self_ns.tolist(), tree.total_ns.tolist()) == ([1, 1], [10, 0], [10, 0])


def test_names_that_ranks_and_steps_share() -> None:
    assert shared_name("ProfilerStep#12") == "ProfilerStep*"
    assert shared_name("nn.Module: Linear_3") == "Linear_3"
    assert shared_name("<built-in method run of Engine object at 0x7F1a>") == "<built-in method run of Engine object>"
    assert shared_name("aten::mm") == "aten::mm"

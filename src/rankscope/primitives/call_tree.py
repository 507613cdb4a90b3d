"""Call trees: calls merged by their path, with self and total time; of a range, of several ranks, inverted.

In: calls with their threads and names. Out: a node for each different path, times in ns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankscope.primitives.call_stack import with_ancestors
from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import Int32, nest
from rankscope.primitives.phases import MODULE_FRAME

_STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class CallTree:
    """The paths of calls; a node comes after the one around it.

    Attributes:
        parent: node around each, −1 at top level, shape ``(nodes,)``.
        name: number of each name.
        depth: number of nodes around it.
        calls: number of calls.
        self_ns: time in the calls, without those directly inside, ns.
        total_ns: self time of the node and of all nodes inside it, ns. Where ranges nest, that is their duration.
    """

    parent: Int64
    name: Int64
    depth: Int64
    calls: Int64
    self_ns: Int64
    total_ns: Int64


def shared_name(name: str) -> str:
    """A name as ranks and steps share it: steps are one, `ProfilerStep*`; addresses of objects and the prefix of
    modules are left out."""
    if _STEP.match(name):
        return "ProfilerStep*"
    return _ADDRESS.sub("", name).removeprefix(MODULE_FRAME)


def within(start: Int64, end: Int64, from_ns: int, to_ns: int) -> Int64:
    """Rows of the ranges that touch ``[from_ns, to_ns)``; one without duration touches where it is."""
    return np.flatnonzero((start < to_ns) & ((end > from_ns) | (start >= from_ns)))


def call_tree(thread: Int32 | Int64, start: Int64, end: Int64, name: Int64) -> CallTree:
    """The tree of calls, those of all threads added up.

    Self times follow `nest`: of ranges that cross, the later one is inside while the earlier is open. Ranges that are
    equal come outermost first.

    Args:
        thread: any integers that tell threads apart, shape ``(calls,)``.
        start: first instants, ns.
        end: instants after the last, ns.
        name: number of each name.
    """
    nesting = nest(thread.astype(np.int32), start, end)
    return _merged(
        nesting.parent.astype(np.int64), nesting.depth, name, np.ones(start.size, np.int64), nesting.self_ns
    )[0]


def combined(trees: Sequence[CallTree]) -> tuple[CallTree, list[Int64]]:
    """Several trees added up, and for each tree the node of each of its own nodes."""
    none = np.empty(0, dtype=np.int64)
    first = np.cumsum([0, *(tree.parent.size for tree in trees)])
    parent = [np.where(tree.parent < 0, -1, tree.parent + at) for tree, at in zip(trees, first, strict=False)]
    fields = [
        np.concatenate([none, *(getattr(tree, field) for tree in trees)])
        for field in ("depth", "name", "calls", "self_ns")
    ]
    tree, node = _merged(np.concatenate([none, *parent]), *fields)
    return tree, [node[low:high] for low, high in pairwise(first)]


def inverted(tree: CallTree) -> CallTree:
    """The tree from the inside: top level are the names, and inside each its callers.

    Both times of a node are the self time that the name at its top has when these callers called it.
    """
    count = tree.parent.size
    leaf, caller = with_ancestors(tree.parent, np.arange(count, dtype=np.int64))
    # Pairs come in rounds: the nodes themselves, then the nodes around them, and so on.
    level = tree.depth[leaf] - tree.depth[caller]
    place = np.full(count, -1, dtype=np.int64)
    parent = np.full(leaf.size, -1, dtype=np.int64)
    low = 0
    while low < leaf.size:
        high = int(np.searchsorted(level, level[low], side="right"))
        parent[low:high] = place[leaf[low:high]]
        place[leaf[low:high]] = np.arange(low, high)
        low = high
    found, node = _merged(parent, level, tree.name[caller], tree.calls[leaf], np.zeros(leaf.size, dtype=np.int64))
    time = np.bincount(node, weights=tree.self_ns[leaf], minlength=found.parent.size).astype(np.int64)
    return CallTree(found.parent, found.name, found.depth, found.calls, time, time)


def largest(total_ns: Int64, limit: int) -> Int64:
    """The nodes with the most time, ascending. A node that is among them has its callers among them.

    Args:
        total_ns: of each node, no more than that of the node around it.
        limit: how many at most.
    """
    order = np.lexsort((np.arange(total_ns.size), -total_ns))[:limit]
    return np.sort(order).astype(np.int64)


def preorder(tree: CallTree, weight: Int64) -> Int64:
    """The nodes with each followed by those inside it, siblings by weight, the largest first."""
    size = np.ones(tree.parent.size, dtype=np.int64)
    levels = [np.flatnonzero(tree.depth == level) for level in range(int(tree.depth.max(initial=-1)) + 1)]
    for rows in reversed(levels[1:]):
        np.add.at(size, tree.parent[rows], size[rows])
    place = np.zeros(tree.parent.size, dtype=np.int64)
    for rows in levels:
        above = tree.parent[rows]
        order = rows[np.lexsort((rows, -weight[rows], above))]
        before = np.cumsum(size[order]) - size[order]
        above = tree.parent[order]
        begins = np.flatnonzero(np.diff(above, prepend=-2))
        # Of each group of siblings the first one comes right after the node around it.
        before -= np.repeat(before[begins], np.diff([*begins, order.size]))
        place[order] = before + np.where(above < 0, 0, place[above] + 1)
    return np.argsort(place)


def _merged(
    parent: Int64, depth: npt.NDArray[np.integer], name: Int64, calls: Int64, self_ns: Int64
) -> tuple[CallTree, Int64]:  # fmt: skip
    """The tree of calls or nodes, and the node of each."""
    node = np.full(parent.size, -1, dtype=np.int64)
    names = int(name.max(initial=0)) + 1
    parents, found, depths, count = [], [], [], 0
    for level in range(int(depth.max(initial=-1)) + 1):
        rows = np.flatnonzero(depth == level)
        above = node[parent[rows]] if level else np.full(rows.size, -1, dtype=np.int64)
        keys, place = np.unique(above * names + name[rows], return_inverse=True)
        node[rows] = place.reshape(-1) + count
        parents.append(keys // names)
        found.append(keys % names)
        depths.append(np.full(keys.size, level, dtype=np.int64))
        count += keys.size
    none = np.empty(0, dtype=np.int64)
    own = _sums(node, self_ns, count)
    total = own.copy()
    above = np.concatenate([none, *parents])
    level_of = np.concatenate([none, *depths])
    for level in range(int(level_of.max(initial=0)), 0, -1):
        rows = np.flatnonzero(level_of == level)
        np.add.at(total, above[rows], total[rows])
    return CallTree(above, np.concatenate([none, *found]), level_of, _sums(node, calls, count), own, total), node


def _sums(node: Int64, value: Int64, count: int) -> Int64:
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, node, value)
    return found

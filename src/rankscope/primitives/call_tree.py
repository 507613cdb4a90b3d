"""Call trees: calls merged by their path, with self and total time; combined over ranks, or inverted.

In: calls with their threads and names. Out: a node for each distinct path, times in ns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankscope.primitives.call_stack import with_ancestors
from rankscope.primitives.hashed_names import without_hashes
from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import Int32, nest
from rankscope.primitives.phases import MODULE_FRAME

STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class CallTree:
    """The paths of calls; a node comes after its parent.

    Attributes:
        parent: each node's parent, −1 at top level, shape ``(nodes,)``.
        name: number of each name.
        depth: number of ancestors.
        calls: number of calls.
        self_ns: time in the calls without their direct children, ns.
        total_ns: self time of the node and all its descendants, ns. If ranges nest, that is their duration.
    """

    parent: Int64
    name: Int64
    depth: Int64
    calls: Int64
    self_ns: Int64
    total_ns: Int64


def shared_name(name: str) -> str:
    """The name without what differs between ranks and steps: all steps are `ProfilerStep*`, addresses of objects and
    the prefix of modules are dropped, and hashes are `…`."""
    if STEP.match(name):
        return "ProfilerStep*"
    return without_hashes(_ADDRESS.sub("", name).removeprefix(MODULE_FRAME))


def within(start: Int64, end: Int64, from_ns: int, to_ns: int) -> Int64:
    """Rows of the ranges that overlap ``[from_ns, to_ns)``, or start in it."""
    return np.flatnonzero((start < to_ns) & ((end > from_ns) | (start >= from_ns)))


def call_tree(thread: Int32 | Int64, start: Int64, end: Int64, name: Int64) -> CallTree:
    """The tree of calls, added up over threads.

    Self times follow `nest`: if ranges cross, the later one is inside the earlier one while that is open. Equal ranges
    come outermost first.

    Args:
        thread: any integers that identify threads, shape ``(calls,)``.
        start: starts, ns.
        end: ends (exclusive), ns.
        name: number of each name.
    """
    nesting = nest(thread.astype(np.int32), start, end)
    return _merged(
        nesting.parent.astype(np.int64), nesting.depth, name, np.ones(start.size, np.int64), nesting.self_ns
    )[0]


def combined(trees: Sequence[CallTree]) -> tuple[CallTree, list[Int64]]:
    """Several trees added up, and for each tree the new node of each of its nodes."""
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
    """The inverted tree: names at top level, and their callers below.

    Both times of a node are the self time of the top-level name when it was called by these callers.
    """
    count = tree.parent.size
    leaf, caller = with_ancestors(tree.parent, np.arange(count, dtype=np.int64))
    # Pairs are sorted by level: the nodes themselves, then their parents, and so on.
    level = tree.depth[leaf] - tree.depth[caller]
    pair_of = np.full(count, -1, dtype=np.int64)
    parent = np.full(leaf.size, -1, dtype=np.int64)
    low = 0
    while low < leaf.size:
        high = int(np.searchsorted(level, level[low], side="right"))
        parent[low:high] = pair_of[leaf[low:high]]
        pair_of[leaf[low:high]] = np.arange(low, high)
        low = high
    merged, node = _merged(parent, level, tree.name[caller], tree.calls[leaf], np.zeros(leaf.size, dtype=np.int64))
    time = np.bincount(node, weights=tree.self_ns[leaf], minlength=merged.parent.size).astype(np.int64)
    return CallTree(merged.parent, merged.name, merged.depth, merged.calls, time, time)


def largest(total_ns: Int64, limit: int) -> Int64:
    """The nodes with the most time, ascending. The callers of these nodes are among them, too.

    Args:
        total_ns: total time of each node, at most that of its parent.
        limit: the maximum number.
    """
    order = np.lexsort((np.arange(total_ns.size), -total_ns))[:limit]
    return np.sort(order).astype(np.int64)


def preorder(tree: CallTree, weight: Int64) -> Int64:
    """The nodes, each followed by its descendants; siblings by weight, the largest first."""
    size = np.ones(tree.parent.size, dtype=np.int64)
    levels = [np.flatnonzero(tree.depth == level) for level in range(int(tree.depth.max(initial=-1)) + 1)]
    for rows in reversed(levels[1:]):
        np.add.at(size, tree.parent[rows], size[rows])
    position = np.zeros(tree.parent.size, dtype=np.int64)
    for rows in levels:
        above = tree.parent[rows]
        order = rows[np.lexsort((rows, -weight[rows], above))]
        before = np.cumsum(size[order]) - size[order]
        above = tree.parent[order]
        begins = np.flatnonzero(np.diff(above, prepend=-2))
        # The first of each group of siblings comes right after their parent.
        before -= np.repeat(before[begins], np.diff([*begins, order.size]))
        position[order] = before + np.where(above < 0, 0, position[above] + 1)
    return np.argsort(position)


def _merged(
    parent: Int64, depth: npt.NDArray[np.integer], name: Int64, calls: Int64, self_ns: Int64
) -> tuple[CallTree, Int64]:  # fmt: skip
    """The tree of calls or nodes, and the node of each."""
    node = np.full(parent.size, -1, dtype=np.int64)
    names = int(name.max(initial=0)) + 1
    parents, name_numbers, depths, count = [], [], [], 0
    for level in range(int(depth.max(initial=-1)) + 1):
        rows = np.flatnonzero(depth == level)
        above = node[parent[rows]] if level else np.full(rows.size, -1, dtype=np.int64)
        keys, index = np.unique(above * names + name[rows], return_inverse=True)
        node[rows] = index.reshape(-1) + count
        parents.append(keys // names)
        name_numbers.append(keys % names)
        depths.append(np.full(keys.size, level, dtype=np.int64))
        count += keys.size
    none = np.empty(0, dtype=np.int64)
    self_sums = _sums(node, self_ns, count)
    total = self_sums.copy()
    above = np.concatenate([none, *parents])
    level_of = np.concatenate([none, *depths])
    for level in range(int(level_of.max(initial=0)), 0, -1):
        rows = np.flatnonzero(level_of == level)
        np.add.at(total, above[rows], total[rows])
    return CallTree(
        above, np.concatenate([none, *name_numbers]), level_of, _sums(node, calls, count), self_sums, total
    ), node


def _sums(node: Int64, value: Int64, count: int) -> Int64:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, node, value)
    return sums

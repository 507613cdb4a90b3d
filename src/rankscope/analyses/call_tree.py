"""Call tree of a range: self and total time of host operators, Python frames or modules by path.

One row per rank and path of calls, in tree order, the most total time first. Calls of all threads are added up.

    --by operators   operators, named ranges and runtime calls, nested as by torch's `key_averages()` (default)
    --by frames      Python frames                     --by modules   calls of nn.Modules
    --steps 10       what ran in this step; or --from-ns and --to-ns, on the run's clock, as the page has it
    --rank 1         only this rank; --against 0 adds the difference of each path from rank 0
    --merge          all ranks added up, in one tree: rank is null
    --invert         inverted: names at top level, and their callers below

    self  = Σ duration − direct children, both cut to the range
    total = self + Σ self of all descendants

Self times add up to the time in which the thread had any call open, so nothing is counted twice. If ranges cross, the
later one counts as inside the earlier one while that is open. In an inverted tree both times are the self time of the
top-level name when these callers called it. All steps have the name `ProfilerStep*`, and addresses of objects are left
out, so that ranks can be compared.

How to read it: follow the largest total from the top to where self time is spent. On a slow rank, sort by
`self_difference_ns` with `--against` a fast one: the first rows are what made it slow. The timeline shows the same for
a measured range, as a flame graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.errors import ConfigError
from rankscope.primitives.call_tree import CallTree, call_tree, combined, inverted, preorder, shared_name, within
from rankscope.primitives.intervals import Int64
from rankscope.primitives.phases import MODULE_FRAME
from rankscope.primitives.steps import host_steps
from rankscope.results import Analysis, Column, Finding, Inputs, Parameter, Parameters, Tables, by_window, concat_ranks

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank; null with `--merge`"),
    Column("node", pl.Int64, "", "number of the row in its tree, from 0"),
    Column("parent", pl.Int64, "", "its caller (with `--invert`: the node that it called); null at top level"),
    Column("depth", pl.Int64, "", "number of ancestors"),
    Column("name", pl.String, "", "the operator, range, frame or module"),
    Column("calls", pl.Int64, "count", "number of calls that overlap the range"),
    Column("self_ns", pl.Int64, "ns", "time in it, without calls inside it"),
    Column("self_share", pl.Float64, "ratio", "share of all self time in the tree"),
    Column("total_ns", pl.Int64, "ns", "time in it, with calls inside it"),
    Column("self_difference_ns", pl.Int64, "ns", "self time minus that of the other rank; null without `--against`"),
    Column("total_difference_ns", pl.Int64, "ns", "total time minus that of the other rank; null without `--against`"),
)
_CALL = ("start_ns", "end_ns", "name", "pid", "tid")
_VALUES = ("calls", "self_ns", "total_ns")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The tree of a rank, its files added up."""
    names: dict[str, int] = {}
    windows = enumerate(by_window(tables, inputs))
    trees = [tree for number, window in windows for tree in _trees_of(window, number, inputs, names)]
    return _rows(combined(trees)[0], list(names), inputs.rank)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The ranks' trees: one after another, added up, or compared with another rank.

    Raises:
        ConfigError: a rank that was named has no trace.
    """
    rank, against = inputs.parameters.get("rank"), inputs.parameters.get("against")
    with_trace = sorted({info.rank for info in inputs.traces if info.rank is not None})
    for named in (rank, against):
        if named is not None and named not in with_trace:
            raise ConfigError(f"there is no trace of rank {named}", hint=f"ranks with a trace: {with_trace}")
    names: dict[str, int] = {}
    trees = {part["rank"].to_list()[0]: _read(part, names) for part in parts if part.height}
    none = combined([])[0]
    compared = trees.get(against, none) if against is not None else None
    kept = {r: tree for r, tree in trees.items() if (rank is None or r == rank) and r != against}
    shown: dict[int | None, CallTree] = {**kept}
    if inputs.parameters.get("merge"):
        shown = {None: combined(list(kept.values()))[0]} if kept else {}
    if inputs.parameters.get("invert"):
        shown = {r: inverted(tree) for r, tree in shown.items()}
        compared = inverted(compared) if compared is not None else None
    texts = list(names)
    frames = [
        _rows(tree, texts, r) if compared is None else _difference(tree, compared, texts, r)
        for r, tree in shown.items()
    ]
    return concat_ranks(frames, COLUMNS), []


def _trees_of(window: Tables, number_of_file: int, inputs: Inputs, names: dict[str, int]) -> list[CallTree]:
    """The tree of each chosen range of a file; `names` gets the names' numbers."""
    calls = _calls(window, str(inputs.parameters.get("by", "operators")))
    text = calls["name"].fill_null("")
    # A trace has few names.
    number = {call: names.setdefault(shared_name(call), len(names)) for call in text.unique(maintain_order=True)}
    name = text.replace_strict(list(number), list(number.values()), return_dtype=pl.Int64).to_numpy()
    thread = calls.select(pl.struct("pid", "tid").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    start = calls["start_ns"].to_numpy()
    end = np.maximum(start, calls["end_ns"].to_numpy())
    trees = []
    for low, high in _ranges(window, number_of_file, inputs, start, end):
        rows = within(start, end, low, high)
        cut = np.maximum(start[rows], low), np.minimum(end[rows], high)
        trees.append(call_tree(thread[rows], *cut, name[rows]))
    return trees


def _calls(window: Tables, by: str) -> pl.DataFrame:
    """The calls sorted by start, the longest first, so that the outer one comes first even when cut to a range."""
    if by == "operators":
        ranges = window["annotations"].filter(~pl.col("on_device"))
        calls = pl.concat([table.select(_CALL) for table in (ranges, window["host_ops"], window["runtime_calls"])])
    else:
        calls = window["python_frames"].select(_CALL)
        if by == "modules":
            calls = calls.filter(pl.col("name").str.starts_with(MODULE_FRAME))
    return calls.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def _ranges(window: Tables, number: int, inputs: Inputs, start: Int64, end: Int64) -> list[tuple[int, int]]:
    """The ranges to look at: the chosen steps, or all of the file, cut to `--from-ns` and `--to-ns`."""
    if inputs.options.steps is not None:
        steps = host_steps(window["annotations"]).filter(inputs.options.keeps(pl.col("step")))
        ranges = list(steps.select("start_ns", "end_ns").iter_rows())
    else:
        ranges = [(int(start.min()), int(end.max()) + 1)] if start.size else []
    if inputs.file_time is not None:
        low, high = (inputs.parameters[name] for name in ("from_ns", "to_ns"))
        begin = None if low is None else inputs.file_time(number, int(low))
        stop = None if high is None else inputs.file_time(number, int(high))
        ranges = [
            (first if begin is None else max(first, begin), last if stop is None else min(last, stop))
            for first, last in ranges
        ]
    return [(first, last) for first, last in ranges if last > first]


def _rows(
    tree: CallTree, names: Sequence[str], rank: int | None, difference: tuple[Int64, Int64] | None = None
) -> pl.DataFrame:
    """A tree as rows in preorder, with the differences of self and total time if there are any."""
    order = preorder(tree, tree.total_ns)
    position = np.empty(order.size, dtype=np.int64)
    position[order] = np.arange(order.size)
    parent = pl.Series(np.where(tree.parent < 0, -1, position[tree.parent])[order], dtype=pl.Int64)
    total_time = int(tree.total_ns[tree.depth == 0].sum())
    null = pl.lit(None, pl.Int64)
    self_difference, total_difference = (
        (null, null) if difference is None else (pl.Series(values[order]) for values in difference)
    )
    return pl.DataFrame(
        {
            "node": np.arange(order.size, dtype=np.int64),
            "parent": parent.set(parent < 0, None),
            "depth": tree.depth[order],
            "name": pl.Series([names[number] for number in tree.name[order]], dtype=pl.String),
            "calls": tree.calls[order],
            "self_ns": tree.self_ns[order],
            "self_share": tree.self_ns[order] / total_time if total_time else np.zeros(order.size),
            "total_ns": tree.total_ns[order],
        }
    ).select(
        pl.lit(rank, pl.Int64).alias("rank"),
        pl.all(),
        self_difference.alias("self_difference_ns"),
        total_difference.alias("total_difference_ns"),
    )


def _read(part: pl.DataFrame, names: dict[str, int]) -> CallTree:
    """A tree from its rows; `names` gets the names' numbers."""
    name = np.array([names.setdefault(text, len(names)) for text in part["name"]], dtype=np.int64)
    parent = part["parent"].fill_null(-1).to_numpy()
    depth, *values = (part[field].to_numpy() for field in ("depth", *_VALUES))
    return CallTree(parent, name, depth, *values)


def _difference(tree: CallTree, other: CallTree, names: Sequence[str], rank: int | None) -> pl.DataFrame:
    """The rows of a tree, and of paths that only the other has, with the differences from the other."""
    both, (tree_nodes, other_nodes) = combined([tree, other])

    def spread(values: Int64, node: Int64) -> Int64:
        spread_values = np.zeros(both.name.size, dtype=np.int64)
        spread_values[node] = values
        return spread_values

    values = (spread(getattr(tree, field), tree_nodes) for field in _VALUES)
    aligned = CallTree(both.parent, both.name, both.depth, *values)
    self_ns, total_ns = (
        getattr(aligned, field) - spread(getattr(other, field), other_nodes) for field in ("self_ns", "total_ns")
    )
    return _rows(aligned, names, rank, (self_ns, total_ns))


def extra_columns(parameters: Parameters) -> dict[str, tuple[str, ...]]:
    """Either operators, or Python frames, which are the largest table of a trace."""
    if parameters.get("by", "operators") == "operators":
        return {"host_ops": _CALL, "runtime_calls": _CALL, "annotations": ("name", "pid", "tid")}
    return {"python_frames": _CALL}


analysis = Analysis(
    name="call_tree",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={"annotations": ("start_ns", "end_ns", "on_device", "step")},
    reads_more=extra_columns,
    parameters=(
        Parameter("by", "what the calls are", default="operators", choices=("operators", "frames", "modules")),
        Parameter("from_ns", "start of the range, on the run's clock", kind="instant"),
        Parameter("to_ns", "end of the range, on the run's clock", kind="instant"),
        Parameter("rank", "only this rank", kind="number", of_reduce=True),
        Parameter("against", "the rank to compare with", kind="number", of_reduce=True),
        Parameter("merge", "add up the ranks", kind="flag", default=False, of_reduce=True),
        Parameter("invert", "from each name to its callers", kind="flag", default=False, of_reduce=True),
    ),
    in_report=False,
    on_page=False,
)

"""The collectives of all ranks in little memory: each row has a number for all that recurs, and its times.

A rank repeats the same few collectives in every layer and step: of 300 rows with 30 columns, 5 have other groups, kinds
or sizes. So these are kept once (`labels`), and rows are matched by their numbers. Only ranks' rows with all columns
take more memory: they are read in blocks, first for the labels, and again for the result.

In: blocks of rows, each with all rows of its ranks. Out: their matches, and the blocks with matches and waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.bandwidth import overlapping, with_transfers
from rankscope.primitives.communicators import encode_communicators
from rankscope.primitives.intervals import Int64
from rankscope.primitives.matching import Matching, match_rows
from rankscope.primitives.matching_state import METHODS, Column, LabeledColumn, MatchingState

_LABELS = (
    "rank", "window", "group", "group_ranks", "group_size", "stream", "collective", "name", "dtype", "in_elements",
    "out_elements", "source_rank", "destination_rank", "source", "unlaunched", "base_ns",
)  # fmt: skip
_FOR_FINDINGS = ("rank", "window", "group", "group_ranks", "group_size", "collective", "source", "unlaunched")
# Texts of which each is kept once; all others are numbers.
_TEXTS = ("group", "group_ranks", "collective", "source")

_ROWS = 1 << 13
"""Rows per batch to which the columns of matching are added."""

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class LabeledRows:
    """The rows of all ranks.

    Attributes:
        labels: the distinct values of `_LABELS`.
        label: by row, which of these it has.
        start: by row, ns on the clock of its trace.
        end: likewise.
        step: −1 if unknown.
        recorded: the recorded sequence number, −1 if there is none.
        overlapping: whether a range on the host overlaps another of its rank.
    """

    labels: pl.DataFrame
    label: npt.NDArray[np.int32]
    start: Int64
    end: Int64
    step: Int64
    recorded: Int64
    overlapping: npt.NDArray[np.bool_]

    def of(self, name: str) -> Int64:
        """By row, an integer column of the labels that has no null."""
        values: Int64 = self.labels[name].to_numpy()[self.label]
        return values


def label_rows(blocks: Iterable[pl.DataFrame]) -> LabeledRows | None:
    """Label rows, if all of them name their group and have run; None otherwise."""
    labels: list[pl.DataFrame] = []
    columns: dict[str, list[pl.Series]] = {
        name: [] for name in ("label", "start_ns", "end_ns", "step", "recorded", "o")
    }
    offset = 0
    for block in blocks:
        if not block.height:
            continue
        if block.select("group", "start_ns", "end_ns").null_count().row(0) != (0, 0, 0):
            return None
        if (block["source"] == "launch").any():
            return None
        keys = block.select(_LABELS).with_columns(pl.col(_TEXTS).cast(pl.Categorical))
        distinct = keys.unique(maintain_order=True)
        numbered = distinct.with_row_index("label", offset)
        number = keys.join(numbered, on=_LABELS, how="left", nulls_equal=True, maintain_order="left")["label"]
        labels.append(distinct)
        offset += distinct.height
        columns["label"].append(number.cast(pl.Int32))
        for name in ("start_ns", "end_ns", "step", "recorded"):
            columns[name].append(block[name])
        columns["o"].append(block.select(overlapping()).to_series())
    if not labels:
        return None
    return LabeledRows(
        pl.concat(labels, rechunk=True),
        pl.concat(columns["label"]).to_numpy(),
        pl.concat(columns["start_ns"]).to_numpy(),
        pl.concat(columns["end_ns"]).to_numpy(),
        _known(columns["step"]),
        _known(columns["recorded"]),
        pl.concat(columns["o"]).to_numpy(),
    )


def _known(parts: list[pl.Series]) -> Int64:
    """Numbers, −1 for null; without memory if all are."""
    if all(part.null_count() == part.len() for part in parts):
        none: Int64 = np.broadcast_to(np.int64(-1), sum(part.len() for part in parts))
        return none
    return pl.concat([part.fill_null(-1) for part in parts]).to_numpy()


def match_labeled(rows: LabeledRows, hosts: Mapping[int, str]) -> Matching:
    """Match the rows of all ranks, as `match_collectives` does."""
    unset = [pl.lit(None, pl.Int64).alias(name) for name in ("start_ns", "end_ns", "step", "recorded")]
    encoded = encode_communicators(rows.labels.with_columns(unset))
    names = ("rank", "communicator", "kind", "full", "stream", "one_sided", "uneven", "p2p", "unnamed", "on_host")
    columns: dict[str, Column] = {name: LabeledColumn(encoded[name].to_numpy(), rows.label) for name in names}
    base = rows.labels["base_ns"].to_numpy()
    columns |= {
        "start_ns": LabeledColumn(base, rows.label, rows.start),
        "end_ns": LabeledColumn(base, rows.label, rows.end),
        "step": rows.step,
        "recorded": rows.recorded,
    }
    return match_rows(MatchingState(columns, lambda row: str(encoded["label"][int(rows.label[row])]), hosts))


def matched_blocks(
    blocks: Iterable[pl.DataFrame], rows: LabeledRows, matching: Matching, ranks: int
) -> Iterator[pl.DataFrame]:
    """The blocks, some of their rows at a time, with what matching adds, and with waits and bandwidths.

    Args:
        blocks: those of `label_rows`.
        rows: their labels.
        matching: their matches.
        ranks: number of ranks in the job: the size of a group that is not recorded.
    """
    events = _events(rows, matching.match)
    first = 0
    for piece in (piece for block in blocks if block.height for piece in block.iter_slices(_ROWS)):
        match = matching.match[first : first + piece.height]
        method = matching.method[first : first + piece.height]
        first += piece.height
        found = events[np.maximum(match, 0)] if events.height else events.clear(piece.height)
        matched = piece.with_columns(
            pl.col("group_ranks").cast(pl.Categorical),
            _match_column(match),
            _method_column(method),
            *found.drop("match").get_columns(),
        )
        yield with_transfers(matched, ranks).drop(found.columns[1:])


def _events(rows: LabeledRows, match: Int64) -> pl.DataFrame:
    """What the ranks' rows of each collective have in common: match, from 0, seen, parts, unusable, shortest_ns."""
    matched = match >= 0
    each = pl.DataFrame(
        {
            "match": match[matched],
            "rank": rows.of("rank")[matched],
            "duration_ns": (rows.end - rows.start)[matched],
            "overlapping": rows.overlapping[matched],
        }
    )
    return (
        each.group_by("match")
        .agg(
            pl.col("rank").n_unique().cast(pl.Int64).alias("seen"),
            pl.len().alias("parts"),
            pl.col("overlapping").any().alias("unusable"),
            pl.col("duration_ns").min().alias("shortest_ns"),
        )
        .sort("match")
    )


def for_findings(rows: LabeledRows, matching: Matching) -> pl.DataFrame:
    """All rows with the columns that findings are about."""
    return rows.labels.select(_FOR_FINDINGS)[rows.label].with_columns(
        _match_column(matching.match),
        _method_column(matching.method).cast(pl.Categorical),
        pl.Series("communicator", matching.group),
        pl.Series("start_ns", rows.start),
        pl.lit(False).alias("unnamed"),
    )


def _match_column(match: Int64) -> pl.Series:
    return pl.select(pl.when(pl.Series(match >= 0)).then(pl.Series("match", match)).alias("match")).to_series()


def _method_column(method: Integers) -> pl.Series:
    codes = pl.Series("match_method", method, pl.Int64)
    names: pl.Series = codes.replace_strict(dict(enumerate(METHODS)), return_dtype=pl.String)
    return names

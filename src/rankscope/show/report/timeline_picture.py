"""A picture of the timeline, drawn by matplotlib (the extra ``plot``), for places without a browser.

Each row is a lane. A pixel has the color of the category that is busy longest within it, paler the less of it is busy.

In: a timeline, a window and ranks. Out: a PNG.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.show.report.formatting import number_of, plain
from rankscope.show.report.scaling_plot import figure_class
from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.pyramid import MAX_LEVELS, shift_of
from rankscope.show.timeline.timeline import Timeline

MAX_LANES = 200
_COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#4f7d2c", "#e69f00", "#b8578f", "#56b4e9", "#c9b458", "#b3a5d6", "#8b95a1",
)  # fmt: skip
"""Of each category, as on the page (`--cat-…` in its `theme.css`)."""
_DPI = 100
_ROW_PX = 16
_EDGE_PX = 110
_LABEL = 28

Picture = npt.NDArray[np.uint8]


def timeline_picture(
    timeline: Timeline,
    window: tuple[int, int],
    ranks: Sequence[int],
    *,
    every_lane: bool = False,
    width: int = 1200,
    event: Mapping[str, Any] | None = None,
) -> bytes:
    """Draw a window of some ranks.

    Args:
        timeline: the run.
        window: first instant and the one after the last, ns on the run's clock.
        ranks: which, in the order of the rows.
        every_lane: all lanes of the ranks instead of their summary lanes; at most `MAX_LANES`.
        width: in pixels.
        event: an event to mark: rank, start_ns and end_ns.

    Raises:
        RankscopeError: matplotlib is not installed.
    """
    figure_of = figure_class()
    lanes, labels, of_rank = _rows(timeline, ranks, every_lane)
    height = _EDGE_PX + _ROW_PX * max(2, len(lanes))
    figure: Any = figure_of(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    picture, used, extent = _painted(timeline, lanes, window, width)
    axes.imshow(
        picture, aspect="auto", interpolation="nearest", extent=(*extent, len(lanes) - 0.5, -0.5), origin="upper"
    )
    axes.set_xlim(*window)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    span = window[1] - window[0]
    ticks = [window[0] + span * part / 5 for part in range(6)]
    decimals = next((each for each in (1, 3, 5) if span * 10**each >= 1e8), 6)
    axes.set_xticks(ticks, [f"{tick / 1e6:,.{decimals}f}" for tick in ticks], fontsize=8)
    axes.set_xlabel(f"ms since the run's first event; the window is {number_of(span, 'ns')} long", fontsize=8)
    if event is not None and event["rank"] in of_rank:
        rows = [row for row, rank in enumerate(of_rank) if rank == event["rank"]]
        for instant in (event["start_ns"], event["end_ns"]):
            axes.plot([instant, instant], [rows[0] - 0.5, rows[-1] + 0.5], color="black", linewidth=1.2)
    for number in used:
        axes.plot([], [], color=_COLORS[number], linewidth=6, label=CATEGORIES[number][1])
    if used:
        figure.legend(loc="outside upper center", ncols=min(6, len(used)), fontsize=8, frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _rows(timeline: Timeline, ranks: Sequence[int], every_lane: bool) -> tuple[list[int], list[str], list[int]]:
    """Of each row the lane, the label and the rank."""
    lanes: list[int] = []
    labels: list[str] = []
    of_rank: list[int] = []
    for rank in ranks:
        in_run = timeline.ranks[rank]
        for own, lane in enumerate(in_run.lanes.lanes):
            if (own == 0) == every_lane or len(lanes) >= MAX_LANES:
                continue
            track = in_run.lanes.tracks[lane.track]
            title = plain(track.title, limit=_LABEL).replace("$", r"\$")
            lanes.append(in_run.first_lane + own)
            own_label = f"rank {rank} {title}" if lane.depth == 0 else ""
            labels.append(own_label if every_lane else f"rank {rank}")
            of_rank.append(rank)
    return lanes, labels, of_rank


def _painted(
    timeline: Timeline, lanes: Sequence[int], window: tuple[int, int], width: int
) -> tuple[Picture, list[int], tuple[int, int]]:
    """The colors of all rows, the categories that are in them, and the instants of their edges."""
    levels = range(min(timeline.levels, MAX_LEVELS))
    # A bin is half a pixel to two pixels wide, unless that is finer or coarser than there are bins.
    wanted = max(1, 2 * (window[1] - window[0]) // width)
    level = max((each for each in levels if 1 << shift_of(each) <= wanted), default=0)
    shift = shift_of(level)
    first, last = window[0] >> shift, (window[1] - 1 >> shift) + 1
    ascending = sorted(lanes)
    _, found = read_column_file(timeline.tiles(level, first, last - first, ascending))
    row_of = np.array([lanes.index(lane) for lane in ascending], dtype=np.int64)
    # The busiest category of a bin comes last, and stays.
    order = np.argsort(found["busy_ns"], kind="stable")
    place = row_of[found["busy_lane"][order]], found["busy_bin"][order].astype(np.int64) - first
    best = np.zeros((len(lanes), last - first), dtype=np.uint8)
    share = np.zeros(best.shape, dtype=np.float32)
    best[place] = found["busy_category"][order]
    share[place] = found["busy_ns"][order] / (1 << shift)
    # Short events stay visible.
    strength = np.where(share > 0, 0.25 + 0.75 * np.clip(share, 0, 1), 0)[..., None]
    colors = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in _COLORS], dtype=np.float32)
    picture = (255 - strength * (255 - colors[best])).astype(np.uint8)
    return picture, sorted({int(each) for each in best[share > 0]}), (first << shift, last << shift)

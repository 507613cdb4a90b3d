"""The picture of the timeline: every pixel's category is that of the events below it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.kineto import collective, kernel, write_ranks

import rankscope
from rankscope.engine.pipeline.clock import clock_of
from rankscope.show.report import timeline_picture as module
from rankscope.show.report.timeline_picture import timeline_picture
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.timeline import Timeline


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    """In 1,024 µs rank 0 computes in the first half, rank 1 communicates in the last quarter; both have an end."""
    mark = kernel("mark", 1023, 1)
    ranks = {
        0: [kernel("gemm", 0, 512), mark],
        1: [kernel("first", 0, 1), collective(768, 255, sequence=0), mark],
    }
    run = rankscope.open(write_ranks(tmp_path / "run", ranks), executor="serial")
    return draw_run(run, clock_of(run))


def test_colors_are_those_of_the_busiest_category(timeline: Timeline) -> None:
    lanes = [timeline.ranks[rank].first_lane for rank in (1, 0)]
    picture, used, (left, right) = module._painted(timeline, lanes, (0, 1_024_000), 512)
    assert used == [0, 1]
    assert left == 0 and right >= 1_024_000
    bin_ns = right // picture.shape[1]
    compute, communication = (
        tuple(int(module._COLORS[number][at : at + 2], 16) for at in (1, 3, 5)) for number in (0, 1)
    )

    def color(row: int, at_us: float) -> tuple[int, ...]:
        return tuple(int(each) for each in picture[row, int(at_us * 1000) // bin_ns])

    # The rows are in the order of the ranks that were given: rank 1 first.
    assert color(1, 100) == color(1, 500) == compute
    assert color(0, 900) == color(0, 1000) == communication
    assert color(1, 700) == color(0, 500) == (255, 255, 255)
    # Half of the first row's time is white, three quarters of the second's.
    white = (picture == 255).all(axis=2).mean(axis=1)
    assert white[1] == pytest.approx(0.5, abs=0.02)
    assert white[0] == pytest.approx(0.75, abs=0.02)


def test_a_png_of_the_given_width(timeline: Timeline) -> None:
    pytest.importorskip("matplotlib")
    event = {"rank": 0, "start_ns": 0, "end_ns": 512_000}
    for every_lane in (False, True):
        png = timeline_picture(timeline, (0, 1_024_000), [0, 1], every_lane=every_lane, width=640, event=event)
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        assert int.from_bytes(png[16:20], "big") == 640
    short = timeline_picture(timeline, (500_000, 500_010), [0], width=400)
    assert int.from_bytes(short[16:20], "big") == 400


def test_tall_runs_are_bounded(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LANES", 1)
    lanes, labels, of_rank = module._rows(timeline, [0, 1], False)
    assert (len(lanes), labels, of_rank) == (1, ["rank 0"], [0])
    assert np.unique(lanes).size == 1


def test_colors_are_those_of_the_page() -> None:
    theme = Path(module.__file__).parents[1] / "web" / "ui" / "src" / "theme" / "theme.css"
    css = theme.read_text(encoding="utf-8").partition("--cat-compute")
    light = "".join(css[1:])[:1500]
    for (name, _), color in zip(CATEGORIES, module._COLORS, strict=True):
        assert f"--cat-{name.replace('_', '-')}: {color};" in light, name

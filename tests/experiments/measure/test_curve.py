"""The curve of a study as a picture."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rankscope.errors import ConfigError, RankscopeError
from rankscope.experiments.measure.results import Projected, Projection, Scaling, Share, Size, Time
from rankscope.show.report import scaling_plot

from .test_results import SETTING

pytest.importorskip("matplotlib")
SIZES = [
    Size("1", 1, 1, "done", step=Time(100), speed_up=Share(1.0), efficiency=Share(1.0)),
    Size("2", 2, 1, "done", step=Time(55), speed_up=Share(1.8, 1.7, 1.9), efficiency=Share(0.9, 0.85, 0.95)),
    Size("4", 4, 1, "done", oversubscribed=True, step=Time(60), speed_up=Share(1.6), efficiency=Share(0.4)),
]
LAW = Projection("usl", "S", 0.1, 0.0, [2], ["as ever"], [Projected(8, Share(4.0), Share(0.5), 25)])


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_it_is_drawn(tmp_path, ending, begins):
    path = tmp_path / "new" / f"curve{ending}"
    scaling_plot.check(path)
    scaling_plot.draw(Scaling(SETTING, "strong", "1", SIZES, LAW), path)
    assert path.read_bytes().startswith(begins)
    if ending == ".svg":
        assert b"http" not in path.read_bytes().replace(b"http://www.w3.org", b"").replace(
            b"http://purl.org", b""
        ).replace(b"http://creativecommons.org", b"").replace(b"https://matplotlib.org", b"")


def test_perfect_speed_up_is_a_straight_line(tmp_path, monkeypatch):
    drawn = []

    class Kept(scaling_plot.figure_class()):
        def __init__(self, **options):
            super().__init__(**options)
            drawn.append(self)

    monkeypatch.setattr(scaling_plot, "figure_class", lambda: Kept)
    scaling_plot.draw(Scaling(SETTING, "strong", "1", SIZES, LAW), tmp_path / "curve.png")
    speed_up, efficiency = drawn[0].axes
    (perfect,) = [line for line in speed_up.lines if line.get_label() == "perfect"]
    shown = speed_up.transData.transform([(ranks, ranks) for ranks in (1, 2, 4, 8)])
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(shown)]
    assert max(slopes) == pytest.approx(min(slopes))
    assert perfect.get_xydata().tolist() == [[1, 1], [8, 8]]
    assert efficiency.get_ylim()[0] == 0


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
        scaling_plot.check(tmp_path / "scaling_plot.gif")
    with pytest.raises(RankscopeError, match="no speed-up to plot"):
        scaling_plot.draw(Scaling(SETTING, "strong", None, []), tmp_path / "scaling_plot.png")


def test_without_matplotlib(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RankscopeError, match=r"pip install 'rankscope\[plot\]'"):
        scaling_plot.check(tmp_path / "scaling_plot.png")

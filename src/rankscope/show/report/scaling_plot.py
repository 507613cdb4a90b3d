"""The plot of a scaling study, drawn by matplotlib (the extra ``plot``).

In: the result of `rankscope measure scaling`. Out: a PNG, SVG or PDF file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError, RankscopeError
from rankscope.experiments.measure.results import Scaling

ENDINGS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Check that the plot can be drawn, before anything is measured.

    Raises:
        ConfigError: the file name has another ending.
        RankscopeError: matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError("a plot is written as .png, .svg or .pdf", path=path)
    figure_class()


def draw(result: Scaling, path: Path) -> None:
    """Draw speed-up and efficiency over ranks.

    Raises:
        RankscopeError: nothing was measured, matplotlib is not installed, or the file cannot be written.
    """
    sizes = [size for size in result.sizes if size.name != "plain" and size.speed_up is not None]
    if not sizes:
        raise RankscopeError(
            "there is no speed-up to plot", path=path, hint="at least T1 and one size must be measured"
        )
    figure: Any = figure_class()(figsize=(9.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [size.ranks for size in sizes]
    last = max([*ranks, *([point.ranks for point in result.projection.points] if result.projection else [])])
    left.plot([1, last], [1, last], color="0.7", linestyle="--", label="perfect")
    right.axhline(1.0, color="0.7", linestyle="--")
    for axes, field in ((left, "speed_up"), (right, "efficiency")):
        for group, marker, label in ((False, "o", "measured"), (True, "x", "oversubscribed")):
            points = [size for size in sizes if size.oversubscribed is group]
            if points:
                _errorbars(axes, points, field, marker, label)
        if result.projection is not None:
            projected = result.projection.points
            axes.plot(
                [point.ranks for point in projected],
                [getattr(point, field).value for point in projected],
                color="tab:orange",
                linestyle=":",
                label=f"projection ({result.projection.model})",
            )
        axes.set_xlabel("ranks")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    # Both doubled: what is perfect is a straight line.
    left.set_yscale("log", base=2, nonpositive="clip")
    left.yaxis.set_major_formatter("{x:g}")
    right.set_ylim(bottom=0)
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency")
    left.legend()
    figure.suptitle(f"{result.mode} scaling", fontsize=10)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path) from error


def _errorbars(axes: Any, sizes: list[Any], field: str, marker: str, label: str) -> None:
    shares = [getattr(size, field) for size in sizes]
    below = [max(0.0, share.value - share.low) if share.low is not None else 0.0 for share in shares]
    above = [max(0.0, share.high - share.value) if share.high is not None else 0.0 for share in shares]
    axes.errorbar(
        [size.ranks for size in sizes],
        [share.value for share in shares],
        yerr=[below, above],
        marker=marker,
        linestyle="-" if marker == "o" else "none",
        color="tab:blue",
        capsize=3,
        label=label,
    )


def figure_class() -> Any:
    """matplotlib's `Figure`.

    Raises:
        RankscopeError: it is not installed.
    """
    try:
        # Without pyplot: no display is needed and no global state is shared.
        from matplotlib.figure import Figure
    except ImportError:
        raise RankscopeError(
            "plots need matplotlib, which is not installed", hint="pip install 'rankscope[plot]'"
        ) from None
    return Figure

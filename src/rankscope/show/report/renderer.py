"""The contract of a renderer of runs: `summary.summary`, `notebook.run_html` and `html_report.write_report` are three.

In: a run, whose analyses the renderer asks for by name. Out: what its medium shows (a rich renderable, HTML, bytes).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from rankscope.engine.pipeline import Run

Shown_co = TypeVar("Shown_co", covariant=True)


class Renderer(Protocol[Shown_co]):
    """Formats and lays out a run. It computes no number, and treats every name in a trace as untrusted text.

    Further parameters have defaults, so that the run alone is enough.
    """

    def __call__(self, run: Run, /) -> Shown_co:
        """Render a run.

        Raises:
            RankscopeError: the run cannot be read.
        """
        ...

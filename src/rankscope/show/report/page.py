"""The built page: one HTML file with a place for the data, from which the report and the server both start.

In: `static/report.html`, which `make ui` builds from `show/web/ui`. Out: its text.
"""

from __future__ import annotations

from importlib import resources

from rankscope.errors import RankscopeError

MARKER = "/*RANKSCOPE_DATA*/"
"""Stands once in the page, where the data goes."""


def page_template() -> str:
    """The text of the built page.

    Raises:
        RankscopeError: it is missing, or has no place for the data.
    """
    text = _read()
    if MARKER not in text:
        raise RankscopeError("the built page has no place for the data", hint="rebuild it: make ui")
    return text


def _read() -> str:
    try:
        return (resources.files("rankscope.show.report") / "static" / "report.html").read_text(encoding="utf-8")
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise RankscopeError(
            "the built page is missing from this installation", hint="in a checkout, build it: make ui"
        ) from error

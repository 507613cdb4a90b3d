"""A run as one self-contained HTML file: the page's client with the results inside.

In: a run. Out: the bytes of an HTML file.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import rankscope
from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RunClock, clock_of, in_run_time
from rankscope.errors import describe_error
from rankscope.results import Analysis, Evidence, Finding, Headline, Result, by_severity
from rankscope.results.failures import FAILURES
from rankscope.show.report.anonymize import Anonymizer
from rankscope.show.report.embed.encoding import json_block
from rankscope.show.report.embed.timeline import embed_run, grid_of, size_of
from rankscope.show.report.embed.whatif import whatif_blocks
from rankscope.show.report.experiments.tables import measured
from rankscope.show.report.page import MARKER, page_template
from rankscope.show.timeline.finding_location import event_of, place_of

PAYLOAD_SCHEMA_VERSION = 1
# Longer tables are truncated to their longest rows, with a note: the file must stay small enough for a ticket.
MAX_ROWS = 20_000
MAX_BYTES = 20_000_000
# Tables of more characters than this are compressed.
PACKED_FROM = 1 << 18
BLOCK = '<script type="application/octet-stream" data-rankscope="{}">'
# Characters that could end the script element, or start a comment or an entity, are escaped inside JSON's strings.
_INERT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_report(run: Run, *, limit: int = MAX_BYTES, anonymize: bool = False) -> bytes:
    """The report of a run: its tables, and as much of its timeline as fits.

    Args:
        run: the run.
        limit: size of the file in bytes; the timeline is cut to fit it, the tables are not.
        anonymize: replace names by numbers (`report.anonymize`).
    """
    grid = grid_of(run)
    value = payload(run, grid=grid)
    names = Anonymizer(run) if anonymize else None
    if names is not None:
        value = names.payload(value)
    head, _, tail = page_template().partition(MARKER)
    text, blocks = _packed(value)
    room = limit - len((head + text + tail).encode("utf-8", "replace")) - sum(map(size_of, blocks.values()))
    further: dict[str, bytes] = {}
    lost = []
    # The tables need neither, and one does not need the other.
    parts: dict[str, Callable[[int], dict[str, bytes]]] = {
        "The replay of a step": lambda _: whatif_blocks(run),
        "The timeline": lambda left: embed_run(run, grid, left, names).blocks,
    }
    for what, embed in parts.items():
        try:
            further |= embed(room - sum(map(size_of, further.values())))
        except FAILURES as error:
            finding = not_shown(what, error).to_json()
            lost.append(finding if names is None else names.finding(finding))
    if lost:
        text, blocks = _packed({**value, "findings": [*value["findings"], *lost]})
    blocks |= further
    elements = "".join(f"</script>\n{BLOCK.format(name)}{b64encode(data).decode()}" for name, data in blocks.items())
    return (head + text + elements + tail).encode("utf-8", "replace")


def _packed(value: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """The payload as text, and the block of its tables if they are large."""
    text = _text_of(value)
    if len(text) <= PACKED_FROM:
        return text, {}
    # Deflated columns are a tenth of the size, and the page unpacks them faster than it parses JSON.
    tables = json_block({name: table["data"] for name, table in value["analyses"].items()})
    packed = {name: {**table, "data": None} for name, table in value["analyses"].items()}
    return _text_of({**value, "analyses": packed}), {"tables": tables}


def _text_of(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_INERT)


def payload(run: Run, analyses: Sequence[str] | None = None, grid: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that the page's tables show, as JSON values.

    Args:
        run: the run.
        analyses: results to include; None for all that the report shows.
        grid: waiting and lateness by rank and step, which place findings in the timeline; None for no places.
    """
    lost: list[Finding] = []
    results = run.attempt(*(analyses or (name for name, each in shown_analyses().items() if each.in_report)))
    if not analyses:
        results = {name: each for name, each in results.items() if each.analysis.shown_empty or each.frame.height}
        results |= measured(run.path, lambda name, error: lost.append(not_shown(f"The table {name}", error)))
    diagnosis = run.diagnosis()
    clock = clock_of(run)
    tables = {}
    for name, result in results.items():
        try:
            tables[name] = table_of(in_run_time(result, clock), headline=diagnosis.headline_of(result))
        except FAILURES as error:
            lost.append(not_shown(f"The table {name}", error))
    return {
        "schema_version": PAYLOAD_SCHEMA_VERSION,
        "generated_by": f"rankscope {rankscope.__version__}",
        "generated_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "run": {**run.about(), "written_by": run.written_by},
        "analyses": tables,
        "diagnosis": diagnosis.to_json(),
        "findings": [located(finding, grid, clock) for finding in by_severity([*run.findings, *lost])],
    }


def not_shown(what: str, error: BaseException) -> Finding:
    """A part of the report, or of the page, that was computed but cannot be shown."""
    return Finding(
        "not-shown",
        "info",
        f"{what} cannot be shown",
        evidence=(Evidence("reason", describe_error(error)),),
        advice="Please report this.",
    )


def located(finding: Finding, grid: Mapping[str, Any] | None, clock: RunClock | None = None) -> dict[str, Any]:
    """A finding as a JSON object, with its place in the timeline as far as it is known.

    Args:
        finding: a finding of the run.
        grid: waiting and lateness by rank and step; None as long as they are not known.
        clock: the run's clock, for the finding's event.
    """
    value = {name: each for name, each in finding.to_json().items() if name != "anchor"}
    value["symptoms"] = [located(each, grid, clock) for each in finding.symptoms]
    if grid is None:
        return value
    try:
        place: dict[str, Any] | None = place_of(finding, grid)
        if place is not None and finding.anchor is not None and clock is not None:
            place = {**place, "event": event_of(finding.anchor, clock)}
    except FAILURES:
        return value  # what it says does not depend on its place
    return {**value, "place": place}


def shown_analyses() -> dict[str, Analysis]:
    """All analyses by name, in the order in which the page and the report list them."""
    return dict(sorted(all_analyses().items(), key=lambda each: not each[1].shown_empty))


def table_of(result: Result, most: int | None = None, *, headline: Headline | None) -> Mapping[str, Any]:
    """One analysis as the page reads it: title, doc, columns, data by column, and how much was truncated.

    Args:
        result: the analysis's result, its instants on the run's clock (`in_run_time`).
        most: rows beyond which it is truncated; None for the limit of a file.
        headline: its answer in one sentence (`Diagnosis.headline_of`, else the result's own).
    """
    most = MAX_ROWS if most is None else most
    frame, instants = result.finite(), result.analysis.instants
    truncated = None
    if frame.height > most:
        weight = "duration_ns" if "duration_ns" in frame.columns else "total_ns"
        truncated = {"shown": most, "total": frame.height}
        if weight in frame.columns:
            kept = frame.with_row_index("_row").sort(weight, descending=True, nulls_last=True).head(most)
            frame = kept.sort("_row").drop("_row")
        else:
            frame = frame.head(most)
    charts = [asdict(chart) for chart in result.analysis.charts]
    return {
        **({"charts": charts} if charts else {}),
        "title": result.analysis.title,
        "doc": result.analysis.doc.strip(),
        "headline": headline.to_json() if headline else None,
        "columns": {
            c.name: {"unit": c.unit, "doc": c.doc, "instant": True}
            if c.name in instants
            else {"unit": c.unit, "doc": c.doc}
            for c in result.analysis.columns
        },
        "data": frame.to_dict(as_series=False),
        "truncated": truncated,
    }

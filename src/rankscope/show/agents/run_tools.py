"""Tools about a run as a whole: which there are, its summary and findings, analyses, and the diff of two.

In: runs and arguments. Out: answers, from the same functions as the command line, the report and the page.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl
from rich.console import Console

from rankscope.analyses import get_analysis, listed_analyses, renamed
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.errors import ConfigError
from rankscope.experiments.compare import diff_runs
from rankscope.experiments.compare.rows import COLUMNS, SECTIONS
from rankscope.results import Analysis, Finding, Result
from rankscope.rundir.ranges import as_ranges
from rankscope.show.agents.answers import Answer, Rows
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.runs import AgentRuns, OpenRun
from rankscope.show.agents.tool import LIMIT, OFFSET, RUN, Tool, column, part_of
from rankscope.show.report import summary as screen
from rankscope.show.report.formatting import sentence
from rankscope.show.report.html_report import located, table_of

SEVERITIES = ("error", "warning", "info")
FINDING_FIELDS = (
    column("number", "", "of the finding in this run, for events and timeline_picture"),
    column("id", "", "kind of finding; docs/rules.md defines each"),
    column("severity", "", "error, warning or info"),
    column("ranks", "", "affected ranks as ranges; empty: all"),
    column("evidence", "", "the numbers that it is based on, each with its unit"),
    column("saving_ns", "ns", "ceiling of what fixing it saves per step; null: not about time, or unknown"),
    column("cost_ns", "ns", "cost per step where it exceeds the saving"),
    column("symptoms", "", "findings about the same time: their savings are part of this one's and are not added"),
    column("scenarios", "", "what is different without it, as options of `rankscope whatif`; empty: not known"),
    column("place", "", "rank, step, and the event that shows it best, ns on the run's clock"),
    column("file", "", "trace file of that event"),
)


def _list_runs(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    found, failed = runs.listed()
    rows = [
        [each.key, each.root.name, each.known.folder, each.known.name, each.known.ranks, each.known.started or None]
        for each in found
    ]
    columns = (
        column("run", "", "key of the run, for the argument run of the other tools"),
        column("root", "", "directory in which it was found"),
        column("folder", "", "its directory below root, if no other run is in it"),
        column("name", "", "id, or name where the traces have no id"),
        column("ranks", "count", "ranks with traces"),
        column("started", "UTC", "when its recording began; null if the clock has no date"),
    )
    jobs = runs.roots.jobs()
    data = {"roots": [root.name for root in runs.roots.all], "jobs": jobs, "unreadable": failed}
    notes = ["jobs are directories for the tools hang and watch."] if jobs else []
    return Answer(data, part_of(rows, columns, given), sources=("rankscope serve, list of runs",), notes=notes)


def _summary(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    run = opened.run
    text = io.StringIO()
    Console(file=text, width=screen.COLUMNS, color_system=None, highlight=False).print(screen.summary(run))
    diagnosis = run.diagnosis()
    overview = run.attempt("overview").get("overview")
    data = {
        "run": opened.about(),
        "headline": sentence(diagnosis.headline),
        "summary": [line.rstrip() for line in text.getvalue().splitlines()],
        "step_ns": diagnosis.step_ns,
        "step_basis": diagnosis.basis,
        "saving_ns_ceiling": diagnosis.saving_ns,
        "stragglers": {
            "state": diagnosis.stragglers.state,
            "ranks": list(diagnosis.stragglers.ranks),
            "sentence": sentence(diagnosis.stragglers.sentence),
        },
        "unknown": [each.to_json() for each in diagnosis.not_judged],
        "overview": _first_row(overview),
        "problems_with_files": [each.title for each in run.loaded.findings if each.severity != "info"],
    }
    sources = ("rankscope summary", "columns of overview: list_analyses name=overview", *_files(opened))
    return Answer(data, sources=sources, page=opened.page("overview"))


def _first_row(result: Result | None) -> dict[str, Any]:
    if result is None or not result.frame.height:
        return {}
    units = {each.name: each.unit for each in result.analysis.columns}
    row = result.finite().row(0, named=True)
    return {name: {"value": value, "unit": units.get(name, "")} for name, value in row.items()}


def _files(opened: OpenRun) -> list[str]:
    names = [opened.file_of(rank) for rank in opened.run.ranks[:4]]
    more = len(opened.run.traces) - len(names)
    return [f"trace files: {', '.join(names)}{f' and {more} more' if more > 0 else ''}"]


def finding_numbered(opened: OpenRun, number: int) -> dict[str, Any]:
    """A finding of a run as JSON values, with its place in the timeline.

    Raises:
        ConfigError: there is no finding with this number.
    """
    found = opened.run.diagnose()
    if number >= len(found):
        raise ConfigError(f"there is no finding {number}", hint=f"findings lists {len(found)}, numbered from 0")
    return located(found[number], opened.heat, opened.clock)


def _findings(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    found = list(enumerate(opened.run.diagnose()))
    worst = SEVERITIES.index(given["severity"])
    chosen = [
        (number, each)
        for number, each in found
        if SEVERITIES.index(each.severity) <= worst
        and given["kind"] in (None, each.id)
        and (given["rank"] is None or not each.ranks or given["rank"] in each.ranks)
    ]
    rows = [_finding_row(opened, number, each) for number, each in chosen]
    data = {
        "run": {"key": opened.keyed.key, "name": opened.run.name},
        "headline": sentence(opened.run.diagnosis().headline),
        "unknown": [each.to_json() for each in opened.run.diagnosis().not_judged],
    }
    notes = ["saving_ns is a ceiling. Savings of findings add up to a step at most; those of symptoms are not added."]
    sources = ("rankscope findings", "docs/rules.md: when each rule fires, and what its saving means")
    return Answer(data, part_of(rows, FINDING_FIELDS, given), sources, opened.page("overview"), notes=notes)


def _finding_row(opened: OpenRun, number: int, finding: Finding) -> dict[str, Any]:
    value = {"number": number, **located(finding, opened.heat, opened.clock), "ranks": as_ranges(finding.ranks)}
    if finding.anchor is not None:
        value["file"] = opened.file_of(finding.anchor.rank, finding.anchor.window)
    return value


def _list_analyses(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    if given["name"] is not None:
        return replace(_described(get_analysis(given["name"])), notes=_of_old_name(given["name"]))
    rows = [
        [name, each.title, [parameter.usage for parameter in each.parameters]]
        for name, each in listed_analyses().items()
    ]
    columns = (
        column("name", "", "for analyze"),
        column("title", "", "what it shows"),
        column("parameters", "", "its options"),
    )
    notes = ["Call again with name=NAME for the formula, how to read the result, and all columns with units."]
    return Answer({}, part_of(rows, columns, given), sources=("rankscope analyses",), notes=notes)


def _described(analysis: Analysis) -> Answer:
    data = {
        "name": analysis.name,
        "doc": analysis.doc.strip().splitlines(),
        "parameters": [
            {"name": each.name, "kind": each.kind, "doc": each.doc, "default": each.default, "choices": each.choices}
            for each in analysis.parameters
        ],
        "columns": [column(each.name, each.unit, each.doc) for each in analysis.columns],
        "views": [
            {
                "name": view.name,
                "doc": view.doc.strip().splitlines(),
                "columns": [column(each.name, each.unit, each.doc) for each in view.columns],
            }
            for view in analysis.views
        ],
    }
    return Answer(data, sources=(f"docs/analyses/{analysis.page}.md",))


def _analyze(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    asked, parameters = get_analysis(given["name"]).name, given["parameters"] or {}
    result = opened.run.analyze(asked, parameters={asked: parameters})[asked]
    name = result.name
    headline = opened.run.diagnosis().headline_of(result) if not parameters else result.headline
    frame, total = _chosen_rows(result, given)
    table = table_of(in_run_time(replace(result, rows=frame), clock_of(opened.run)), headline=headline)
    shown = [each for each in given["columns"] or table["data"] if each in table["data"]]
    if missing := sorted(set(given["columns"] or ()) - set(shown)):
        raise ConfigError(f"{name} has no column {missing[0]!r}", hint=f"columns: {', '.join(table['data'])}")
    rows = list(zip(*(table["data"][each] for each in shown), strict=True))
    columns = [{"name": each, "unit": about["unit"], "doc": about["doc"]} for each, about in table["columns"].items()]
    data = {
        "run": {"key": opened.keyed.key, "name": opened.run.name},
        "analysis": name,
        "title": table["title"],
        "headline": sentence(headline) if headline is not None else None,
        "findings": [finding.title for finding in result.findings],
        "incomplete_ranks": as_ranges(result.incomplete),
    }
    sources = (
        f"docs/analyses/{result.analysis.page}.md, list_analyses name={result.analysis.page}: formula and columns",
        *_files(opened),
    )
    ordered = [each for each in columns if each["name"] in shown]
    part = Rows(sorted(ordered, key=lambda each: shown.index(each["name"])), rows, total, given["offset"])
    return Answer(data, part, sources, opened.page(name), notes=_of_old_name(given["name"]))


def _of_old_name(name: str) -> tuple[str, ...]:
    """A note if an analysis has another name now: a warning does not reach an agent."""
    note = renamed(name.replace("-", "_"))
    return (f"{note}.",) if note else ()


def _chosen_rows(result: Result, given: Mapping[str, Any]) -> tuple[pl.DataFrame, int]:
    """The rows of one answer, and how many match in all."""
    frame = result.finite()
    for key in ("rank", "step"):
        if given[key] is not None:
            if key not in frame.columns:
                raise ConfigError(f"{result.name} has no column {key}", hint=f"columns: {', '.join(frame.columns)}")
            frame = frame.filter(pl.col(key) == given[key])
    if given["match"] is not None:
        texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
        wanted = given["match"].lower()
        has = [pl.col(name).str.to_lowercase().str.contains(wanted, literal=True).fill_null(False) for name in texts]
        frame = frame.filter(pl.any_horizontal(has) if has else pl.lit(False))
    if given["sort"] is not None:
        if given["sort"] not in frame.columns:
            raise ConfigError(
                f"{result.name} has no column {given['sort']!r}", hint=f"columns: {', '.join(frame.columns)}"
            )
        frame = frame.sort(given["sort"], descending=not given["ascending"], nulls_last=True, maintain_order=True)
    return frame.slice(given["offset"], given["limit"]), frame.height


def _diff(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    first = runs.get(given["a"])
    second = runs.get(given["b"]) if given["b"] is not None else None
    diff = diff_runs(first.run, None if second is None else second.run, ranks=given["ranks"])
    frame = diff.result().finite()
    if given["section"] is not None:
        frame = frame.filter(pl.col("section") == given["section"])
    if given["significant"]:
        frame = frame.filter(pl.col("significant"))
    rows = list(frame.slice(given["offset"], given["limit"]).iter_rows())
    data = {
        "a": _side(diff.a, first),
        "b": _side(diff.b, second or first),
        "findings_gained": [_short(each) for each in diff.gained],
        "findings_lost": [_short(each) for each in diff.lost],
    }
    columns = [column(each.name, each.unit, each.doc) for each in COLUMNS]
    notes = ["change is b - a, a mean per rank and step. significant: null means too few steps to tell, not no change."]
    other = {"with": second.keyed.key} if second is not None else {}
    page = first.page("diff", other)
    return Answer(data, Rows(columns, rows, frame.height, given["offset"]), ("rankscope diff",), page, notes=notes)


def _side(about: Mapping[str, Any], opened: OpenRun) -> dict[str, Any]:
    ranks, steps = as_ranges(about["ranks"]), as_ranges(about["steps"])
    return {"key": opened.keyed.key, "name": about["name"], "ranks": ranks, "steps": steps}


def _short(finding: Finding) -> dict[str, Any]:
    return {"id": finding.id, "severity": finding.severity, "title": finding.title, "saving_ns": finding.saving_ns}


LIST_RUNS = Tool(
    "list_runs",
    "List the runs with traces below the directories of this server, the latest first, and the jobs with a watch log "
    "or hang dumps. The first call reads all traces.",
    (OFFSET, LIMIT),
    _list_runs,
)
SUMMARY = Tool(
    "summary",
    "Summarize a run: step time and where it goes, stragglers, memory, the most important findings, and what these "
    "traces cannot tell. Start here.",
    (RUN,),
    _summary,
)
FINDINGS = Tool(
    "findings",
    "List what is wrong with a run, most severe first: typed evidence with units, a ceiling for the saving, advice, "
    "symptoms, and the event that shows it.",
    (
        RUN,
        Argument("severity", "text", "Only findings of this severity or worse.", "info", choices=SEVERITIES),
        Argument("kind", "text", "Only findings with this id."),
        Argument("rank", "integer", "Only findings about this rank or all ranks."),
        OFFSET,
        LIMIT,
    ),
    _findings,
)
LIST_ANALYSES = Tool(
    "list_analyses",
    "List the analyses; with name: its formula, how to read it, its parameters, and its columns with units.",
    (Argument("name", "text", "One analysis."), OFFSET, replace(LIMIT, default=200)),
    _list_analyses,
    opens_runs=False,
)
ANALYZE = Tool(
    "analyze",
    "Run one analysis and return its rows: a table with a row per rank, step, kernel, collective … Times are integer "
    "nanoseconds; null is unknown, 0 is a recorded zero.",
    (
        RUN,
        Argument("name", "text", "Name of the analysis, from list_analyses.", required=True),
        Argument("parameters", "values", 'Its options by name, such as {"by": "shape"}.'),
        Argument("columns", "texts", "Only these columns. Fewer columns leave room for more rows."),
        Argument("rank", "integer", "Only rows of this rank."),
        Argument("step", "integer", "Only rows of this step."),
        Argument("match", "text", "Only rows with a text that contains this, ignoring case."),
        Argument("sort", "text", "Column to sort by, the largest first. Default: the order of the analysis."),
        Argument("ascending", "flag", "Sort the smallest first.", False),
        OFFSET,
        LIMIT,
    ),
    _analyze,
)
DIFF = Tool(
    "diff",
    "Compare two runs, or two ranks of one: what changed per rank and step, whether that is significant, and which "
    "findings were gained or lost.",
    (
        Argument("a", "text", "Key of the first run. Default: the latest run."),
        Argument("b", "text", "Key of the second run; leave out to compare two ranks of the first."),
        Argument("ranks", "integers", "Two ranks of a to compare, or the ranks of both runs to include."),
        Argument("section", "text", "Only this section.", choices=SECTIONS),
        Argument("significant", "flag", "Only significant changes.", False),
        OFFSET,
        LIMIT,
    ),
    _diff,
)

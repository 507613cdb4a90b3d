"""Every number that a run shows, with its quantity, what it is about and its window, from every place that shows it.

The places are read as a reader has them: the summary's text, the list of findings, the headlines, the tables embedded
in the report, JSON and SQL. A text is cut into numbers by the words around them; the summary's must all be understood.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Console
from tests.show.report.reading import read_report

from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.results import Evidence, Headline
from rankscope.show.export.formats import to_json
from rankscope.show.report.formatting import sentence
from rankscope.show.report.html_report import write_report
from rankscope.show.report.summary import summary
from rankscope.show.report.terminal import findings_list

STEPS, RECORDING = "steps", "entire recording"
MEASURED = ("ns", "ratio", "bytes", "count", "ranks")
PLACE = ("rank", "window", "step")
MOST_ROWS = 400
"""Of a table: further rows are not read."""
_UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
NUMBER = r"(?:< )?(?:\d[\d,]*(?:\.\d+)?) (?:ns|µs|ms|s|%|B|kB|MB|GB|TB)(?![\w/])"
_NUMBER = re.compile(NUMBER)


@dataclass(frozen=True)
class Number:
    """A number where it is shown.

    Attributes:
        quantity: what is measured.
        about: whose: rank, step and the like.
        window: what it is of: the steps, or the entire recording.
        low, high: what the shown digits stand for.
        place: where it was read.
    """

    quantity: str
    about: tuple[tuple[str, Any], ...]
    window: str
    low: float
    high: float
    place: str

    @property
    def name(self) -> tuple[str, tuple[tuple[str, Any], ...], str]:
        """What two values of must agree."""
        return self.quantity, self.about, self.window


def contradictions(numbers: Iterable[Number]) -> list[tuple[Number, Number]]:
    """Pairs with one name whose digits cannot stand for one value."""
    by_name: dict[Any, list[Number]] = defaultdict(list)
    for each in numbers:
        by_name[each.name].append(each)
    found = []
    for same in by_name.values():
        highest, lowest = max(same, key=lambda each: each.low), min(same, key=lambda each: each.high)
        if highest.low > lowest.high:
            found.append((lowest, highest))
    return found


def in_several_places(numbers: Iterable[Number]) -> dict[Any, set[str]]:
    """The names that are read in more than one place, with these."""
    places: dict[Any, set[str]] = defaultdict(set)
    for each in numbers:
        places[each.name].add(each.place)
    return {name: found for name, found in places.items() if len(found) > 1}


def gather(run: Run) -> list[Number]:
    """All numbers of a run."""
    page, _ = read_report(write_report(run))
    numbers = [*_of_summary(run), *_of_texts(run, page), *_of_findings(page["findings"], "report")]
    clock = clock_of(run)
    own = [clock.finding(each).to_json() for each in run.diagnose()]
    numbers += _of_findings(own, "findings as JSON")
    for name, table in page["analyses"].items():
        if name not in all_analyses() or table["truncated"]:
            continue
        numbers += _of_table(name, pl.DataFrame(table["data"], strict=False), "report", run)
        rows = run.sql(f"SELECT * FROM result_{name}")
        numbers += _of_table(name, rows, "SQL", run)
        value = json.loads(to_json(in_run_time(run.analyze(name)[name], clock), run.about()))
        numbers += _of_table(name, pl.DataFrame(value["rows"], infer_schema_length=None), "JSON", run)
    return numbers


# -- tables -----------------------------------------------------------------------------------------------------------


def _of_table(name: str, frame: pl.DataFrame, place: str, run: Run) -> Iterator[Number]:
    """The cells of a table, and what follows from its rows: means over ranks and steps, sums over groups."""
    analysis = all_analyses()[name]
    window = RECORDING if analysis.whole_recording else STEPS
    keys = []
    for column in analysis.columns:
        if column.unit or column.instant:
            break
        keys.append(column.name)
    units = {each.name: each for each in analysis.columns}
    where = f"{place}: {name}"
    rows = frame.head(MOST_ROWS).rows(named=True)
    identities = [
        tuple((key, row[key]) for key in keys if row.get(key) is not None or key not in PLACE) for row in rows
    ]
    repeated = len(set(identities)) < len(identities) or (not keys and len(rows) > 1)
    for number, (row, identity) in enumerate(zip(rows, identities, strict=True)):
        about = (*identity, ("row", number), ("table", name)) if repeated else identity
        for name_of, value in row.items():
            known = units.get(name_of)
            if known is None or isinstance(value, bool | str) or value is None:
                continue
            if known.instant or known.unit in MEASURED:
                # Counts are of what the table lists; an instant is one event's.
                mine = about if known.unit in ("ns", "ratio", "bytes") and not known.instant else (*about, ("of", name))
                yield Number(name_of, mine, window, *_about(float(value)), where)
    if {"rank", "step", "window_ns"} <= set(frame.columns) and not frame.is_empty():
        yield from _means(frame, where, run)
    if name == "collective_summary_by_rank" and not frame.is_empty():
        by_rank = frame.group_by("rank").agg(pl.col("last", "collectives").sum())
        for rank, last, collectives in by_rank.iter_rows():
            yield Number("last_share", (("rank", rank),), window, *_about(last / collectives), f"{where}, summed")


def _means(frame: pl.DataFrame, where: str, run: Run) -> Iterator[Number]:
    """Means over ranks and steps, without incomplete files and cold steps (written anew, from metrics.md)."""
    rows = frame.rows(named=True)
    cut = {info.rank for info in run.traces if info.is_incomplete}
    rows = [row for row in rows if row["rank"] not in cut] or rows
    rows = [row for row in rows if row["step"] is not None] or rows
    slowest: dict[Any, int] = {}
    for row in rows:
        place = row["window"], row["step"]
        slowest[place] = max(slowest.get(place, 0), row["window_ns"])
    ordered = sorted(slowest.values())
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    yield Number("step_ns", (), STEPS, *_about(median, 0.5), f"{where}, median")
    long = {place for place, length in slowest.items() if length > 2 * median}
    usual: dict[Any, int] = {}
    for window, step in slowest.keys() - long:
        usual[window] = min(usual.get(window, step), step) if step is not None else 0
    leading = all(step is not None and step < usual.get(window, step + 1) for window, step in long)
    cold = len(slowest) >= 3 and (len(long) == 1 or leading)
    if cold:
        rows = [row for row in rows if (row["window"], row["step"]) not in long]
    total = sum(row["window_ns"] for row in rows)
    sums = {
        column: sum(row[column] for row in rows)
        for column in frame.columns
        if column.endswith("_ns") and column != "start_ns" and all(row[column] is not None for row in rows)
    }
    for column, value in sums.items():
        quantity = "mean_step_ns" if column == "window_ns" else column
        yield Number(quantity, (), STEPS, *_about(value / len(rows), 0.5), f"{where}, mean")
        if total and column != "window_ns":
            yield Number(f"{column} of mean_step_ns", (), STEPS, *_about(value / total), f"{where}, share")
    if {"overlap_ns", "exposed_communication_ns"} <= sums.keys() and sums["overlap_ns"]:
        hidden = sums["overlap_ns"]
        share = hidden / (hidden + sums["exposed_communication_ns"])
        yield Number("overlap_ratio", (), STEPS, *_about(share), f"{where}, share")


def _about(value: float, error: float = 0.0) -> tuple[float, float]:
    room = error + 1e-9 * abs(value) + (1.0 if abs(value) >= 1e3 and error else 0.0)
    return value - room, value + room


# -- texts ------------------------------------------------------------------------------------------------------------

_N = f"({NUMBER})"
_PARTS = {
    "compute": "compute_ns", "exposed communication": "exposed_communication_ns", "copies": "exposed_copies_ns",
    "waiting for data": "data_loading_ns", "otherwise idle": "otherwise_idle_ns",
}  # fmt: skip
TEXTS: Sequence[tuple[str, Sequence[str]]] = (
    (rf"^step +{_N}", ["step_ns"]),
    (rf"; step \d+: {_N}(?:, and|$)", ["longest_step_ns"]),
    (rf"^mean over [\w ]+, {_N}", ["mean_step_ns"]),
    *((rf"^{part} +{_N} +(0|{NUMBER})", [f"{column} of mean_step_ns", column]) for part, column in _PARTS.items()),
    (rf"{_N} of communication overlaps", ["overlap_ratio"]),
    (rf"of which {_N} overlaps with compute", ["overlap_ratio"]),
    (rf"Step time: {_N}", ["step_ns"]),
    (rf"mean step of {_N}", ["mean_step_ns"]),
    (rf"exposed communication is {_N}", ["exposed_communication_ns"]),
    (rf"mean step of {NUMBER} \({_N}\)", ["exposed_communication_ns of mean_step_ns"]),
    (rf"^{_N} of the mean step is exposed communication", ["exposed_communication_ns of mean_step_ns"]),
    (rf"of the {_N} step\b", ["step_ns"]),
    (rf"Longest step: {_N}", ["longest_step_ns"]),
    # The page's cards.
    (rf"^Overlap: {_N}", ["overlap_ratio"]),
    (rf"^Exposed communication: {_N}", ["exposed_communication_ns"]),
    (rf"{_N} of the mean step \({NUMBER}[^)]*\), including waiting", ["exposed_communication_ns of mean_step_ns"]),
    (rf"of the mean step \({_N}", ["mean_step_ns"]),
)
"""What a reader understands by the words around a number."""
STRAGGLER = (rf"(?:saves up to|costs up to|[Uu]p to) {_N} (?:per step|of the)",)
EVIDENCE = {
    "exposed communication, mean per rank and step": "exposed_communication_ns",
    "step time (median, slowest rank)": "step_ns",
    "mean step time (all ranks)": "mean_step_ns",
}
OF_RANK = {
    "time other ranks waited for it, all steps together": "waited_ns",
    "largest lateness per step, mean": "lateness_ns",
}
"""Evidence of a finding about one rank, and the column of `stragglers` that has it."""


def read(text: str, place: str, about: str, window: str = STEPS) -> list[Number]:
    """The numbers of a sentence: of known quantities by the words around them, others by the sentence itself.

    Args:
        about: what the sentence is about, for others.
    """
    found: dict[int, Number] = {}
    for pattern, quantities in TEXTS:
        for match in re.finditer(pattern, text):
            for group, quantity in enumerate(quantities, 1):
                low, high = digits(match.group(group))
                at = match.start(group)
                found[at] = Number(quantity, (), window, low, high, place)
    template = _NUMBER.sub("#", text)
    for count, match in enumerate(_NUMBER.finditer(text)):
        if match.start() not in found:
            low, high = digits(match.group())
            found[match.start()] = Number(f"{template} [{count}]", (("text", about),), window, low, high, place)
    return list(found.values())


def digits(text: str) -> tuple[float, float]:
    """What `12.4 ms` can stand for; 0 is 0."""
    if text == "0":
        return 0.0, 0.0
    shown = text.removeprefix("< ")
    value, unit = shown.split(" ")
    value = value.replace(",", "")
    decimals = len(value.partition(".")[2])
    half = 0.5 * 10.0**-decimals
    low, high = (float(value) - half) * _UNITS[unit], (float(value) + half) * _UNITS[unit]
    return (0.0 if text.startswith("<") else low * (1 - 1e-12)), high * (1 + 1e-12)


def _of_summary(run: Run) -> list[Number]:
    """The summary's lines above its findings. Each number must be understood."""
    out = io.StringIO()
    Console(file=out, width=100, highlight=False).print(summary(run, 100))
    body = out.getvalue().split("\n\n")[1]
    numbers: list[Number] = []
    for line in re.sub(r"\n {12}(?=\S)", " ", body).splitlines():
        text = line.strip()
        if text.startswith(("memory", "traces", "stragglers")):
            continue  # their sentences are findings', and headlines
        here = read(text, "summary", "summary")
        unknown = [each.quantity for each in here if "#" in each.quantity]
        assert not unknown, f"numbers of the summary without a name: {unknown}"
        numbers += here
    straggler = re.search(r"^stragglers +ranks? (\d+): .*", re.sub(r"\n {12}(?=\S)", " ", body), re.MULTILINE)
    if straggler:
        numbers += _straggler_costs(straggler.group(), int(straggler.group(1)), "summary")
    return numbers


def _straggler_costs(text: str, rank: int, place: str) -> list[Number]:
    """What a straggler costs: its sentences have one number for that, the saving, and no other duration."""
    costs = [found for pattern in STRAGGLER for found in re.finditer(pattern, text)]
    allowed = {found.start(1) for found in costs}
    steps = {found.start(1) for found in re.finditer(rf"of the {_N} (?:mean )?step|\({_N}\)", text)}
    shares = {found.start() for found in re.finditer(r"[\d.]+ %", text)}
    other = [f.group() for f in _NUMBER.finditer(text) if f.start() not in allowed | steps | shares]
    assert not other, f"a straggler's sentence has other numbers than its saving: {other} in {text!r}"
    about = (("straggler", rank),)
    return [Number("saving_ns", about, STEPS, *digits(found.group(1)), place) for found in costs]


def _of_texts(run: Run, page: Mapping[str, Any]) -> Iterator[Number]:
    """The headlines of the page and of the terminal, and the list of findings."""
    diagnosis = run.diagnosis()
    yield from read(sentence(diagnosis.headline), "headline", "headline")
    first = next((each for each in diagnosis.findings if each.id == "straggler"), None)
    if first is not None and first.saving_ns:
        yield from _straggler_costs(sentence(diagnosis.stragglers.sentence), first.ranks[0], "straggler's sentence")
        if sentence(diagnosis.headline).startswith(first.title):
            yield from _straggler_costs(sentence(diagnosis.headline), first.ranks[0], "headline")
    for name, table in page["analyses"].items():
        if table["headline"] is None or name not in all_analyses():
            continue
        window = RECORDING if all_analyses()[name].whole_recording else STEPS
        values = tuple(Evidence(**each) for each in table["headline"]["values"])
        yield from read(sentence(Headline(table["headline"]["text"], values)), f"headline of {name}", name, window)
    out = io.StringIO()
    Console(file=out, width=4000, highlight=False).print(findings_list(diagnosis.findings, run.about()["steps"]))
    for line in out.getvalue().splitlines():
        severity, _, text = line.strip().partition(" ")
        if severity in ("warning", "info", "error"):
            yield from (each for each in read(text.strip(), "list of findings", "finding") if "#" not in each.quantity)
    for each in diagnosis.findings:
        if each.id == "straggler" and each.saving_ns:
            line = next(line for line in out.getvalue().splitlines() if each.title[:60] in line)
            yield from _straggler_costs(line.split(" ", 1)[1], each.ranks[0], "list of findings")


def _of_findings(findings: Iterable[Mapping[str, Any]], place: str) -> Iterator[Number]:
    """The evidence and the savings of findings, those of their symptoms too."""
    for each in findings:
        ranks = tuple(each["ranks"])
        about = (("finding", each["id"]), ("ranks", ranks), ("title", each["title"]))
        yield from read(each["title"], place, each["id"])
        for one in each["evidence"]:
            if isinstance(one["value"], str):
                continue
            low, high = _about(float(one["value"]), 0.5)
            if one["name"] in EVIDENCE:
                yield Number(EVIDENCE[one["name"]], (), STEPS, low, high, f"{place}: {each['id']}")
            elif one["name"] in OF_RANK and len(ranks) == 1 and each["id"] == "straggler":
                yield Number(OF_RANK[one["name"]], (("rank", ranks[0]),), STEPS, low, high, f"{place}: {each['id']}")
            else:
                yield Number(one["name"], about, STEPS, low, high, place)
        if each["saving_ns"] is not None:
            own = (("straggler", ranks[0]),) if each["id"] == "straggler" else about
            yield Number("saving_ns", own, STEPS, *_about(float(each["saving_ns"]), 0.5), place)
        yield from _of_findings(each["symptoms"], place)

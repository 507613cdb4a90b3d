"""The diagnosis: one value behind every headline, card and list, which never fails and says what it cannot judge."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests import kineto
from tests.analyses.reference import rank_events
from tests.analyses.test_edge_traces import CASES
from tests.answers.diagnosis.rules.steps import work

import rankscope
from rankscope.answers.diagnosis.step_costs import StepWords, step_words
from rankscope.answers.diagnosis.verdict import _headline, diagnosis_of
from rankscope.cli import main
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.experiments.simulate import Fault, Job, simulate
from rankscope.results import Evidence, Finding, Inputs, Options, by_severity, with_symptoms
from rankscope.results.rank_state import enough, longest_wait
from rankscope.show.report.formatting import sentence
from rankscope.show.report.html_report import payload
from rankscope.show.report.notebook import run_html
from rankscope.show.report.summary import summary
from rankscope.show.report.terminal import findings_list, not_judged_list


def opened(tmp_path: Path, by_rank: dict[int, list[kineto.Event]], **metadata: object) -> Run:
    return rankscope.open(kineto.write_ranks(tmp_path / "run", by_rank, **metadata), executor="serial")  # type: ignore[arg-type]


def check(run: Run) -> None:
    """What holds for every run."""
    found, diagnosis = run.diagnose(), run.diagnosis()
    assert run.diagnosis() is diagnosis
    step = diagnosis.step_ns
    assert diagnosis.saving_ns <= (step or 0)
    assert sentence(diagnosis.headline).endswith(".")
    assert "{" not in sentence(diagnosis.headline) + sentence(diagnosis.stragglers.sentence)
    assert {each.id for each in with_symptoms(diagnosis.findings)} == {each.id for each in diagnosis.stated}
    assert all(each in found for each in diagnosis.findings)
    for each in diagnosis.not_judged:
        assert each.what and each.why
    json.dumps(diagnosis.to_json(), allow_nan=False)
    console = Console(file=io.StringIO(), width=80)
    console.print(summary(run), findings_list(found, run.about()["steps"], with_evidence=True))
    console.print(not_judged_list(diagnosis))
    assert run_html(run)
    named = [rank for each in found if each.id == "straggler" for rank in each.ranks]
    assert diagnosis.stragglers.ranks == tuple(dict.fromkeys(named))


def test_the_analysis_says_of_stragglers_what_the_diagnosis_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(ranks=4, steps=6, seed=2, faults=(Fault("slow_device", (2,), magnitude=0.15),))
    simulate(tmp_path / "run", job, costs=False)
    run = rankscope.open(tmp_path / "run", executor="serial")
    output = tmp_path / "stragglers.json"
    arguments = ["rankscope", "analyze", "stragglers", str(tmp_path / "run"), "-f", "json", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["headline"] == run.diagnosis().stragglers.sentence.to_json()
    (finding,) = [each for each in written["findings"] if each["id"] == "straggler"]
    (merged,) = [each for each in run.diagnosis().findings if each.id == "straggler"]
    assert finding == json.loads(json.dumps(clock_of(run).finding(merged).to_json()))


@pytest.mark.parametrize("lacking", ["no file", "a file that is cut"])
def test_a_rank_without_a_file_may_delay_the_others(tmp_path: Path, lacking: str) -> None:
    """Rank 1 is slow. Of the other three no one is, and more is not known without its file."""
    job = Job(ranks=4, steps=16, seed=3, faults=(Fault("slow_device", (1,), magnitude=0.3),))
    simulate(tmp_path / "run", job, costs=False)
    (path,) = (each for each in sorted((tmp_path / "run").rglob("*.json*")) if "rank1" in each.name)
    if lacking == "no file":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    run = rankscope.open(tmp_path / "run", executor="serial")
    verdict = run.diagnosis().stragglers
    assert verdict.state == "none"
    assert re.fullmatch(r"none by more than \d+ µs per step \(16 steps\) among the recorded ranks", verdict.label)
    assert "among the recorded ranks" in sentence(verdict.sentence)
    shown = io.StringIO()
    Console(file=shown, width=200).print(summary(run, 200))
    assert verdict.label in shown.getvalue()
    assert verdict.label in run_html(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_hardly_a_trace_is_diagnosed(tmp_path: Path, name: str) -> None:
    run = opened(tmp_path, CASES[name])
    check(run)
    shown = payload(run)
    assert shown["diagnosis"] == run.diagnosis().to_json()
    failed = [each.title for each in run.diagnosis().stated if each.id == "not-diagnosed"]
    assert not failed
    if not run.about()["steps"]:
        assert "Time per step" in {each.what for each in run.diagnosis().not_judged}


def reasons(run: Run) -> dict[str, str]:
    check(run)
    return {each.what: each.why for each in run.diagnosis().not_judged}


def test_without_steps_it_says_so(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: CASES["no steps"][0]})
    assert reasons(run) == {
        "Time per step": "no step is marked: figures are of the recorded span, from the first to the last device event"
    }
    assert "recorded span" in sentence(run.diagnosis().headline)


def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    found = reasons(opened(tmp_path, {0: CASES["the host alone"][0], 1: CASES["the host alone"][1]}))
    assert found["Whether a difference lasts"] == "only 1 step recorded"
    assert "no device event is recorded" in found["Device idle time, launches and kernels"]


def test_of_one_rank_of_several_it_cannot_tell_who_is_late(tmp_path: Path) -> None:
    content = kineto.trace([kineto.step(0, 0, 100), *work(10, 50)], rank=0, world_size=4)
    kineto.write(tmp_path / "rank0_iter0_0.json", content)
    run = rankscope.open(tmp_path, executor="serial")
    assert run.diagnosis().stragglers.state == "one-rank"
    assert reasons(run)["Which rank delays the others, and waiting in communication"] == "1 of 4 ranks has a trace here"


def test_ranks_without_collectives_cannot_be_compared(tmp_path: Path) -> None:
    events = [each for at in (0.0, 1000.0, 2000.0) for each in (kineto.step(int(at), at, 1000), *work(at + 10, 500))]
    run = opened(tmp_path, {0: events, 1: events})
    assert run.diagnosis().stragglers.state == "not-compared"
    assert reasons(run)["Which rank delays the others"] == "no collective is recorded"


def test_two_steps_are_too_few_to_tell(tmp_path: Path) -> None:
    run = opened(tmp_path, {rank: rank_events(rank) for rank in range(2)})
    check(run)
    if not run.diagnosis().stragglers.ranks:
        assert run.diagnosis().stragglers.state == "too-few-steps"
        assert "Too few steps to tell" in sentence(run.diagnosis().stragglers.sentence)


def test_the_headline_is_the_first_finding(tmp_path: Path) -> None:
    events = [
        each
        for at in (0.0, 1000.0, 2000.0)
        for each in (kineto.step(int(at), at, 1000), kineto.loading(at, 300), *work(at + 310, 680))
    ]
    run = opened(tmp_path, {0: events})
    check(run)
    first = run.diagnosis().findings[0]
    assert first.id == "data_loading"
    headline = sentence(run.diagnosis().headline)
    assert headline.startswith(first.title)
    assert "(30.0 %) can be saved" in headline


@pytest.mark.slow
def test_what_was_asked_before_changes_nothing(tmp_path: Path) -> None:
    for rank, at in ((0, 300), (1, 240)):  # The kernel of one begins before its launch has begun.
        events = [*kineto.small_step(), kineto.launch(250, 5, correlation=7), kineto.kernel("k", at, 20, correlation=7)]
        kineto.write(tmp_path / f"rank{rank}.json", kineto.trace(events, rank=rank, world_size=2))
    plain = rankscope.open(tmp_path, executor="serial").diagnose()
    run = rankscope.open(tmp_path, executor="serial")
    for by in ("rank", "kernel", "stream"):
        run.analyze("launches", parameters={"launches": {"by": by}})
    assert [each.to_json() for each in run.diagnose()] == [each.to_json() for each in plain]


def test_the_most_costly_note_is_the_one_that_saves_most() -> None:
    """It was the first one, a straggler that others wait for: "the most costly note: …, up to 0.17 %", before 2.5 %."""
    late = Finding("straggler", "info", "Rank 5 delays the other ranks", ranks=(5,), saving_ns=17, cost_ns=400)
    waits = Finding("synchronizing_calls", "info", "Calls wait", saving_ns=250)
    found = _headline([late, waits], StepWords("step", "a step", "per step", "step time"), 10_000, False)
    assert (
        sentence(found)
        == "No performance warnings. The most costly note: Calls wait (up to 2.5 % of the 10.0 µs step)."
    )


def headline_from(findings: list[Finding], step: int | None = 10_000) -> str:
    """The headline over these findings, of a run without steps."""
    inputs = Inputs(Options(), ())
    return sentence(diagnosis_of(findings, findings, inputs, step, None).headline).replace("\u00a0", " ")


def test_without_a_known_saving_the_headline_is_the_largest_cost() -> None:
    unit = step_words(Inputs(Options(), ()))
    costly = Finding("idle", "info", "The device waits", evidence=(Evidence(unit.length, 10_000, "ns"),), cost_ns=4000)
    cheaper = Finding("copies", "info", "Copies run", evidence=(Evidence(unit.length, 10_000, "ns"),), cost_ns=300)
    # An info without a length says nothing of where the time goes, wherever it is.
    other = Finding("clocks", "info", "Clocks are not aligned")
    assert headline_from(by_severity([cheaper, other, costly])) == "The device waits."
    assert headline_from([other]).startswith("No finding saves 1 % or more of the 10.0 µs")
    assert headline_from([]).startswith("No finding saves 1 %")


def test_a_known_saving_comes_before_a_cost_and_a_warning_before_both() -> None:
    unit = step_words(Inputs(Options(), ()))
    costly = Finding("idle", "info", "The device waits", evidence=(Evidence(unit.length, 10_000, "ns"),), cost_ns=4000)
    note = Finding("copies", "info", "Copies run", saving_ns=90)
    warning = Finding("damage", "warning", "A file is cut")
    saving = Finding("loading", "warning", "Data is late", saving_ns=2500)
    assert headline_from([costly, note]).startswith(
        "No performance warnings. The most costly note: Copies run (up to 0.90 %"
    )
    assert headline_from([warning, costly, note]) == "A file is cut."
    said = headline_from(by_severity([warning, saving, costly, note]))
    assert said == "Data is late. Up to 2.50 µs of the 10.0 µs recorded span (25.0 %) can be saved."


@pytest.mark.parametrize(
    ("log_steps", "waited_ms", "said"), [(50, 29, False), (50, 31, True), (None, 29, True), (None, 0, False)]
)
def test_a_wait_that_the_log_could_not_tell_from_chance_names_no_rank(
    log_steps: int | None, waited_ms: int, said: bool
) -> None:
    """Of three recorded steps, where a delay of 10 ms per step would show."""
    rows = {
        "rank": [0, 1],
        "waited_ns": [waited_ms * 1_000_000, 0],
        "steps": [3, 3],
        "log_steps": [log_steps, log_steps],
        "least_delay_ns": [10_000_000, 10_000_000],
    }
    frame = pl.DataFrame(rows, schema=dict.fromkeys(rows, pl.Int64))
    assert (longest_wait(frame) is not None) is said


@pytest.mark.parametrize(("needed", "said"), [(None, "15"), (3, "15"), (142, "140"), (1508, "1,500")])
def test_steps_that_would_do_have_two_digits(needed: int | None, said: str) -> None:
    """They are from the spread of a few steps."""
    columns = {"log_steps": [None], "least_delay_ns": [None], "steps_needed": [needed]}
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))
    assert enough(frame) == f"about {said} would do"

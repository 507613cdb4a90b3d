"""Texts on runs of many kinds: every sentence makes sense, and amounts, steps and shares agree."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests import kineto
from tests.analyses.reference import write_reference
from tests.show.report.test_notebook import Seen, displayed

import rankscope
from rankscope.analyses import all_analyses
from rankscope.answers.diagnosis.merging import ON_ITS_OWN
from rankscope.engine.pipeline import Run
from rankscope.results import Finding, Headline, over_ranks, with_symptoms
from rankscope.show.report.formatting import percent, saving_of, sentence
from rankscope.show.report.summary import ANALYSES, PARTS, summary
from rankscope.show.report.terminal import findings_list

UNIT = r"(?:%|ns|µs|ms|s|B|kB|MB|GB|TB)"
NOUNS = (
    "rank|step|call|trace|window|collective|bucket|file|event|host|finding|row|device|socket|core|kernel|manifest|"
    "piece|frame|group|stage|microbatch|launch"
)
VERBS = "is|was|has|waits|holds|comes|arrives|delays|needs|computes|works|takes|this|across|its|loses|idles|allocates"
SILLY = {
    "by nothing": r"\b(?:by|of|takes?|waited|leaves? it idle|within|hides) 0(?![\d.,]| %)",
    "one of many": rf"(?<![\d.,–-])(?<!rank )(?<!step )(?<!stage )(?<!device )\b1 (?!(?:{VERBS})\b)[a-z]+s\b",
    "many of one": rf"(?<![\d.,])(?:0|[2-9]|[1-9]\d[\d,]*) (?:{NOUNS})\b(?!’|:)",
    "a thousand of a unit": r"(?<![\d.,])1,?000(?:\.0+)?[ \u00a0](?:ns|µs|ms|B|kB|MB|GB)\b",
    "a hyphen for a minus": rf"(?<![\w.–/)-])-\d[\d.,]*[ \u00a0]?{UNIT}(?!\w)",
    "nothing for a value": r"\bNone\b|\bnan\b|\bnull\b|\{\w*\}",
    "a hole": r"  |\s[,.;:](?:\s|$)|\.\.(?!\.)|;\.|,\.| ;",
    "percent without a space": r"\d%",
    "a name of code": r"\b(?:slow_host|slow_device|more_work|slow_network|_ns)\b",
}


def silly(text: str) -> list[str]:
    return [f"{what}: {found.group()!r} in {text!r}" for what, how in SILLY.items() if (found := re.search(how, text))]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rank 0 works most, by 0 a step", "by nothing"),
        ("1 ranks have no trace", "one of many"),
        ("4 cores, 1 sockets", "one of many"),
        ("in 12 call over all ranks", "many of one"),
        ("a step takes 1000 ms", "a thousand of a unit"),
        ("the change is -100 ms", "a hyphen for a minus"),
        ("waits in 12.3% of the step", "percent without a space"),
        ("the cause is slow_host", "a name of code"),
    ],
)
def test_what_is_silly_is_known(text: str, what: str) -> None:
    assert any(found.startswith(f"{what}:") for found in silly(text))


@pytest.mark.parametrize(
    "text",
    [
        "Rank 1 has 0.42 % of it in step 1 is", "ranks 0–1 of 2", "1 step, 2 steps, 1,000 steps", "1.00 s, −100 ms",
        "0 % of a step", "in 21 calls over all ranks", "at 0.5 ms a step", "saves up to 1.50 ms per step",
    ],
)  # fmt: skip
def test_what_is_not_silly_is_let_by(text: str) -> None:
    assert not silly(text)


def no_value_is_nothing(name: str, headline: Headline) -> None:
    """What is nothing is said in words: none of a sentence's amounts is 0."""
    assert not [each for each in headline.values if each.unit and each.value == 0], (name, headline)


def without_names(headline: Headline) -> str:
    """The sentence with a word in the place of each name, which the traces chose and nobody can mend."""
    values = tuple(
        type(each)(each.name, "name" if isinstance(each.value, str) else each.value, each.unit)
        for each in headline.values
    )
    return sentence(Headline(headline.text, values))


def said_well(run: Run) -> set[str]:
    """Holds every headline and finding of a run against what is silly; gives the analyses that have a headline."""
    spoke, wrong = set(), []
    for name, result in run.attempt(*all_analyses()).items():
        if (headline := run.diagnosis().headline_of(result)) is None:
            continue
        spoke.add(name)
        text = without_names(headline)
        wrong += [f"{name}: {each}" for each in silly(text)]
        assert text.endswith(".") and re.match(r"[A-Z\d]|name", text), (name, text)
        assert len(run.ranks) > 1 or "all ranks" not in text, (name, text)
        no_value_is_nothing(name, headline)
    for finding in with_symptoms(run.findings):
        for text in (finding.title, finding.advice, finding.because, *(each.name for each in finding.evidence)):
            wrong += [f"{finding.id}: {each}" for each in silly(text.replace(run.path, "DIR"))]
        fits_its_step(finding)
    assert not wrong, "\n".join(wrong)
    return spoke


def fits_its_step(finding: Finding) -> None:
    """A share of a step, or of the recorded span, in a title: the saving by the step that stands among the evidence.

    Both of the finding on its own: less of it is counted where other findings are about the same time.
    """
    share_text = re.search(r"(\d+) % of (?:a step|the recorded span)", finding.title)
    lengths = [each.value for each in finding.evidence if re.match(r"(?:step time|recorded span) \(", each.name)]
    if share_text is None or finding.saving_ns is None:
        return
    assert len(lengths) == 1 and isinstance(lengths[0], int), finding
    alone = [each.value for each in finding.evidence if each.name == ON_ITS_OWN]
    saving = alone[0] if alone else finding.saving_ns
    assert isinstance(saving, int)
    assert saving <= lengths[0], finding
    # Of exposed communication compute may be too short to overlap with all.
    if finding.id != "exposed_communication" or int(share_text[1]) < 100 * saving / lengths[0]:
        assert int(share_text[1]) == pytest.approx(100 * saving / lengths[0], abs=0.51), finding


def one_basis(run: Run) -> None:
    """Wherever an amount stands beside a step and a share: the one by the other is the third."""
    overview = run.overview().row(0, named=True)
    whole = {info.rank for info in run.traces} - {i.rank for i in run.traces if i.truncated or i.lost_events}
    rows = [row for row in run.step_time().iter_rows(named=True) if row["rank"] in whole or not whole]
    mean = sum(row["window_ns"] for row in rows) / len(rows)
    assert overview["mean_step_ns"] == pytest.approx(mean, abs=1)
    by_column = {
        "compute_ns": ["compute_ns"],
        "exposed_communication_ns": ["exposed_communication_ns"],
        "exposed_copies_ns": ["exposed_memcpy_ns", "exposed_memset_ns"],
        "data_loading_ns": ["data_loading_ns"],
        "otherwise_idle_ns": ["runtime_ns", "host_op_ns", "other_ns"],
    }
    for column, parts in by_column.items():
        assert overview[column] == pytest.approx(sum(row[part] for row in rows for part in parts) / len(rows), abs=1)
    assert sum(overview[column] for column in by_column) == pytest.approx(overview["mean_step_ns"], abs=3)
    share = overview["exposed_communication_ns"] / overview["mean_step_ns"]
    assert overview["exposed_share"] == pytest.approx(share, abs=2 / overview["mean_step_ns"])
    if overview["slowest_margin_ns"] is not None:
        margin = overview["slowest_margin_ns"] / overview["mean_step_ns"]
        assert overview["slowest_margin_share"] == pytest.approx(margin, abs=2 / overview["mean_step_ns"])
    longest: dict[tuple[int, int | None], int] = {}
    for row in rows:
        key = (row["window"], row["step"])
        longest[key] = max(longest.get(key, 0), row["window_ns"])
    inner = sorted(longest.values())
    median = (inner[(len(inner) - 1) // 2] + inner[len(inner) // 2]) / 2
    assert overview["step_ns"] == pytest.approx(median, abs=1)

    headline = run.analyze("overview")["overview"].headline
    assert headline is not None
    values = {each.name: each.value for each in headline.values}
    assert values["step"] == overview["step_ns"]
    if "exposed" in values:
        of = values.get("mean", values["step"])
        assert isinstance(of, int) and isinstance(values["exposed"], int)
        assert values["share"] == pytest.approx(values["exposed"] / of, abs=2 / of)


NUMBER = r"([\d.,]+) (ns|µs|ms|s)\b"
SIZES = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def amount(text: str, what: str = NUMBER) -> float:
    found = re.search(what, text)
    if found is None:
        assert re.search(r"(?<![\d.])0\b", text), text
        return 0.0
    return float(found[1].replace(",", "")) * SIZES[found[2]]


def the_terminal_agrees(run: Run) -> None:
    """The verdict's lines, as a person divides them: each amount by the mean step above it is the share beside it."""
    out = io.StringIO()
    Console(file=out, width=80, highlight=False, color_system=None).print(summary(run, 80))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 24
    # No title is cut, nor what is behind it; of the advice only the end may be.
    squeezed = " ".join(out.getvalue().split())
    begun = [line.split()[0] for line in lines if re.match(r"(?:error|warning|info) ", line)]
    diagnosed = [finding for finding in run.diagnose() if finding not in run.loaded.findings][: len(begun)]
    assert begun == [finding.severity for finding in diagnosed]
    for finding in diagnosed:
        assert f"{finding.severity} {finding.title}{saving_of(finding, run.about()['steps'])}" in squeezed, lines
    assert not [found for line in lines[2:] for found in silly(re.sub(r"[ ▒█▓▚·]{2,}", " | ", line.rstrip()))], lines
    overview = run.overview().row(0, named=True)
    (step,) = [line for line in lines if line.startswith("step ")]
    assert amount(step) == pytest.approx(overview["step_ns"], rel=0.01)
    above = [line for line in lines if line.startswith(("  mean over", "  of which"))]
    mean = amount(above[0]) if "mean" in above[0] else amount(step)
    assert mean == pytest.approx(overview["mean_step_ns"], rel=0.01)
    html = Seen(displayed(run)).text
    for column, label, _, _ in PARTS:
        (line,) = [each for each in lines if each.startswith(f"  {label}")]
        shares = re.search(r"(<? ?[\d.]+) %", line)
        assert shares is not None
        share = 0.0 if "<" in shares[1] else float(shares[1]) / 100
        assert share == pytest.approx(amount(line[shares.end() :]) / mean, abs=0.006), line
        assert percent(overview[column] / overview["mean_step_ns"]) in line
        assert percent(overview[column] / overview["mean_step_ns"]) in html, column
    results = run.attempt(*ANALYSES)
    memory = results["memory"].headline if "memory" in results else None
    if memory is not None:
        peak = next(each.value for each in memory.values if each.name == "peak")
        (line,) = [each for each in lines if each.startswith("memory ")]
        assert f"rank {next(each.value for each in memory.values if each.name == 'rank')}" in line
        assert isinstance(peak, int) and str(peak)[:2] in re.sub(r"\D", "", line)
    verdict = run.diagnosis().stragglers
    if verdict.state == "straggler":
        (line,) = [each for each in lines if each.startswith("stragglers")]
        first = next(each for each in run.diagnosis().findings if each.id == "straggler")
        assert f"rank {verdict.ranks[0]}: {first.title.partition(': ')[2][:30]}" in line


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated64") / "run"
    small = "--ranks 64 --steps 3 --layers 1 --kernels-per-layer 2 --microbatches 1 --fault slow_device:rank=7"
    subprocess.run([sys.executable, "-m", "rankscope", "simulate", str(folder), *small.split()], check=True)
    return folder


def of_gloo(traces: Path, folder: Path) -> Path:
    for rank in (0, 1):
        name = f"ddp_gpt_straggler_rank1.rank{rank}.json.gz"
        (folder / name).symlink_to(traces / "gloo-2ranks" / name)
    return folder


REAL: dict[str, Callable[[Path, Path], Path]] = {
    "h100": lambda traces, _: traces / "modded-nanogpt-h100-8ranks",
    "gloo": of_gloo,
    "one rank": lambda traces, _: traces / "hta" / "ns_resolution_trace",
    "cpu": lambda traces, _: traces / "hta" / "cpu_only",
    "torchrec": lambda traces, _: traces / "torchrec" / "rank2-sleeps-4ranks",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_runs(name: str, shared_traces: Path, tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(REAL[name](shared_traces, tmp_path), executor="serial")
    spoke = said_well(run)
    assert {"overview", "step_time", "operators"} <= spoke
    one_basis(run)
    the_terminal_agrees(run)


@pytest.mark.slow
def test_a_simulated_run(simulated: Path) -> None:
    run = rankscope.open(simulated, executor="serial")
    assert {"overview", "stragglers", "clock", "placement"} <= said_well(run)
    one_basis(run)
    the_terminal_agrees(run)


def alike(rank: int) -> list[kineto.Event]:
    """A step of one kernel, one collective and one launch: one of everything, and nothing beyond it."""
    return [
        kineto.step(3, 0, 1000),
        kineto.launch(1, 1, correlation=1),
        kineto.kernel("gemm", 0, 500, correlation=1),
        kineto.launch(3, 1, correlation=2),
        kineto.collective(500, 300, stream=20, correlation=2),
    ]


def made_runs(folder: Path) -> Iterator[Path]:
    """Runs that ask for each other form of a sentence: one of all, none of all, no step, no communication."""
    yield write_reference(folder / "reference")
    yield kineto.write_ranks(folder / "one", {0: alike(0)})
    yield kineto.write_ranks(folder / "two", {0: alike(0), 1: alike(1)})
    yield kineto.write_ranks(folder / "lacking", {1: alike(1)})
    yield kineto.write_ranks(folder / "unmarked", {0: [kineto.kernel("gemm", 0, 50)]})
    yield kineto.write_ranks(folder / "hidden", {0: [*alike(0), kineto.kernel("more", 500, 500, stream=9)]})
    host = [kineto.op("aten::mm", 0, 50), kineto.annotation("gloo:all_reduce", 40, 20, tid=9)]
    yield kineto.write_ranks(folder / "host", {0: host, 1: host})


def test_made_runs(tmp_path: Path) -> None:
    for path in made_runs(tmp_path):
        run = rankscope.open(path, executor="serial")
        said_well(run)
        one_basis(run)
        the_terminal_agrees(run)


def test_ranks_that_work_alike(tmp_path: Path) -> None:
    """No rank is named where none is waited for."""
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: alike(0), 1: alike(1)}), executor="serial")
    assert run.overview()["slowest_margin_ns"].to_list() == [0]
    out = io.StringIO()
    Console(file=out, width=80).print(summary(run, 80))
    assert "stragglers  too few steps to tell (about 15 would do)\n" in re.sub(" +\n", "\n", out.getvalue())


def test_a_cut_rank_is_in_no_part_of_the_verdict(tmp_path: Path) -> None:
    """The overview leaves a rank out whose file breaks off; so do the parts of the step."""
    folder = kineto.write_ranks(tmp_path / "run", {0: alike(0), 1: alike(1)})
    (path,) = folder.glob("*1*")
    content = path.read_text(encoding="utf-8")
    path.write_text(content[: content.rindex("{")], encoding="utf-8")
    run = rankscope.open(folder, executor="serial")
    assert any(finding.id == "trace-truncated" for finding in run.findings)
    one_basis(run)
    the_terminal_agrees(run)


def test_never_more_than_a_step(tmp_path: Path) -> None:
    """A first step that loads for nine: their mean is more than the median step, so the others count."""
    events: list[kineto.Event] = []
    at = 0.0
    for number, length in enumerate((10_000, 1000, 1000, 1000)):
        load = length - 900 if number == 0 else 10
        events += [kineto.step(number, at, length), kineto.loading(at + 1, load)]
        events += [kineto.launch(at + 2 + load, 1, correlation=number + 1)]
        events += [kineto.kernel("k", at + 4 + load, 100, correlation=number + 1)]
        at += length
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    (found,) = [finding for finding in run.diagnose() if finding.id == "data_loading"]
    assert found.title == "The job waits for data for 1 % of a step"
    assert ("left out as unusual: step 0, at most", 9_100_000) in [(each.name, each.value) for each in found.evidence]
    fits_its_step(found)


def test_steps_and_windows_in_the_words_of_savings(tmp_path: Path) -> None:
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: alike(0)}), executor="serial")
    finding = Finding("x", "warning", "A title", saving_ns=1_500_000)
    for steps, words in ((run.about()["steps"], "per step"), ([], "in the recorded span")):
        out = io.StringIO()
        Console(file=out, width=100).print(findings_list([finding], steps))
        assert out.getvalue().split("\n")[0].rstrip() == f"warning A title (saves up to 1.50 ms {words})"


@pytest.mark.parametrize(("ranks", "words"), [([0, 0], ""), ([0, 1], " over all ranks"), ([], "")])
def test_one_rank_is_not_all_ranks(ranks: list[int], words: str) -> None:
    assert over_ranks(pl.DataFrame({"rank": pl.Series(ranks, dtype=pl.Int64)})) == words

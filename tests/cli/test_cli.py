"""The subcommands that read a run, in a process of their own where it matters: formats, files, terminals, pipes."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import polars as pl
import pytest
from tests import kineto
from tests.analyses.reference import rank_events, write_reference

import rankscope
from rankscope.analyses import all_analyses, listed_analyses
from rankscope.cli import main
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.results import Analysis, Parameter
from rankscope.results.discovery import discovered

RANKSCOPE = [sys.executable, "-c", "from rankscope.cli import main; main()"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reference(tmp_path_factory.mktemp("reference") / "run")


@pytest.fixture
def run(reference: Path, shared_cache: Path) -> Path:
    """A run that tests only read."""
    return reference


def called(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> bytes:
    """What a command that succeeds prints."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "argv", ["rankscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfdbinary.readouterr()
    assert left.value.code in (0, None), err.decode()
    return out


def failed(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What a command that fails says."""
    monkeypatch.setattr(sys, "argv", ["rankscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfdbinary.readouterr()
    assert left.value.code == 2
    assert out == b""
    assert b"Traceback" not in err
    return err.decode()


Capture = pytest.CaptureFixture[bytes]
QUICK = ("device_time", "kernels", "memory", "mesh", "step_time")
"""Among the fast tests; the slow ones have every analysis."""
Patch = pytest.MonkeyPatch


def written_rows(path: Path, name: str) -> pl.DataFrame:
    """An analysis's rows as they are written: instants on the run's clock."""
    opened = rankscope.open(path, executor="serial")
    return in_run_time(opened.analyze(name)[name], clock_of(opened)).frame


@pytest.mark.parametrize("name", sorted(all_analyses()))
def test_json_is_the_contract(run: Path, capfdbinary: Capture, monkeypatch: Patch, name: str) -> None:
    found = json.loads(called(capfdbinary, monkeypatch, "analyze", name, run, "--format", "json"))
    assert [key for key in found if key != "headline"] == [
        "schema_version",
        "analysis",
        "run",
        "columns",
        "rows",
        "findings",
    ]
    assert (found["schema_version"], found["analysis"]) == (1, name)
    assert all(set(column) == {"unit", "doc"} and column["doc"] for column in found["columns"].values())
    frame = written_rows(run, name)
    assert [list(row) for row in found["rows"]] == [list(found["columns"])] * frame.height
    assert found["rows"] == frame.to_dicts()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(all_analyses())],
)
def test_csv_and_parquet_hold_the_same_rows(
    run: Path, tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch, name: str
) -> None:
    frame = written_rows(run, name)
    called(capfdbinary, monkeypatch, "analyze", name, run, "-f", "parquet", "-o", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(frame)
    written = called(capfdbinary, monkeypatch, "analyze", name, run, "--format", "csv")
    assert pl.read_csv(io.BytesIO(written), schema=frame.schema).equals(frame)
    piped = called(capfdbinary, monkeypatch, "analyze", name, run, "-f", "parquet")
    assert pl.read_parquet(io.BytesIO(piped)).equals(frame)


def test_dashes_serve_as_underscores(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    found = json.loads(called(capfdbinary, monkeypatch, "analyze", "device-time", run, "-f", "json"))
    assert found["analysis"] == "device_time"


def test_steps_both_ends_included(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    found = json.loads(called(capfdbinary, monkeypatch, "analyze", "step_time", run, "-f", "json", "--steps", "11:11"))
    assert [row["step"] for row in found["rows"]] == [11, 11]


def test_further_communication_names(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    arguments = ("analyze", "kernels", run, "-f", "json", "--communication", "^BACKLOG")
    rows = json.loads(called(capfdbinary, monkeypatch, *arguments))["rows"]
    assert {row["category"] for row in rows if row["name"] == "backlog_gemm"} == {"communication"}


def test_the_table_and_its_limit(run: Path, tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    text = called(capfdbinary, monkeypatch, "analyze", "kernels", run, "--limit", "2").decode()
    answer, table = text.split("\n\n", 1)
    assert answer.startswith("Top kernel: ampere_sgemm_128x64_nn, ") and answer.endswith(
        " over all ranks) (entire recording)."
    )
    assert table.splitlines()[0].split()[:4] == ["rank", "name", "category", "calls"]
    assert "… 10 more rows: --limit 0 shows all" in text
    called(capfdbinary, monkeypatch, "analyze", "kernels", run, "--limit", "0", "-o", tmp_path / "table.txt")
    lines = (tmp_path / "table.txt").read_text(encoding="utf-8").splitlines()
    assert (lines[:2], len(lines)) == ([" ".join(answer.split()), ""], 16)
    assert lines[-1] == "columns without values: grid, block, registers, shared_memory"


def test_rows_sorted_by_a_column(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    def rows(*options: str) -> list[dict[str, str]]:
        text = called(capfdbinary, monkeypatch, "analyze", "kernels", run, "-f", "csv", *options).decode()
        return list(csv.DictReader(io.StringIO(text)))

    def column(name: str, *options: str) -> list[str]:
        return [row[name] for row in rows(*options)]

    totals = sorted(map(int, column("total_ns")))
    assert list(map(int, column("total_ns", "--sort", "total"))) == totals[::-1]
    assert list(map(int, column("total_ns", "--sort", "total_time", "--reverse"))) == totals
    names = column("name", "--sort", "name")
    assert names == sorted(names)
    for descending in (("--sort=-name",), ("--sort", "-name"), ("--sort", "name", "--reverse")):
        assert column("name", *descending) == names[::-1]
    assert list(map(int, column("total_ns", "--sort=-total"))) == totals[::-1]
    assert "no column 'size'" in failed(capfdbinary, monkeypatch, "analyze", "kernels", run, "--sort=-size")
    refused = failed(capfdbinary, monkeypatch, "analyze", "kernels", run, "--sort", "size")
    assert "kernels has no column 'size'" in refused
    assert "total_ns" in refused
    assert "--sort COLUMN" in failed(capfdbinary, monkeypatch, "analyze", "kernels", run, "--reverse")


def test_piped_text_is_not_padded(run: Path, tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    for command in (("findings", run), ("analyze", "kernels", run), ("summary", run)):
        lines = called(capfdbinary, monkeypatch, *command).decode().splitlines()
        assert len(lines) > 2
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_table_of_nothing_says_so(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    for name in ("operators", "kernels"):
        text = called(capfdbinary, monkeypatch, "analyze", name, run, "--match", "no_such_name").decode()
        assert text == f"no rows: these traces contain no data for {name} with --match no_such_name\n"


def test_findings_are_in_the_json(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.trace(rank_events(0), rank=0, world_size=4))
    found = json.loads(called(capfdbinary, monkeypatch, "analyze", "device_time", tmp_path, "-f", "json"))
    assert [finding["id"] for finding in found["findings"]] == ["missing-ranks"]
    assert found["findings"][0]["ranks"] == [1, 2, 3]


def test_the_list_of_analyses_and_one_of_them(capfdbinary: Capture, monkeypatch: Patch) -> None:
    listed = called(capfdbinary, monkeypatch, "analyses").decode()
    assert [line.split()[0] for line in listed.splitlines()] == list(listed_analyses())
    shown = called(capfdbinary, monkeypatch, "analyses", "device-time").decode()
    assert "exposed memory" in shown
    assert all(column.name in shown for column in all_analyses()["device_time"].columns)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("analyze", "nonsense", "RUN"), "there is no analysis 'nonsense'"),
        (("analyze", "kernels", "RUN", "--steps", "9:3"), "ends before it begins"),
        (("analyze", "kernels", "RUN", "--steps", "a"), "is not a range of steps"),
        (("analyze", "kernels", "RUN", "--communication", "("), "is not a regular expression"),
        (("analyze", "kernels", "RUN", "--executor", "moon"), "there is no executor"),
        (("analyze", "kernels", "RUN/nowhere"), "there is no such file or directory"),
        (("analyze", "kernels", "RUN", "-o", "RUN/no/such/folder/x"), "cannot be written"),
        (("analyze", "kernels", "RUN", "-f", "json", "-o", "RUN/no/such/folder/x"), "cannot be written"),
        (("analyze", "slices", "RUN", "--match"), "--match REGEX: events whose name matches"),
        (("analyze", "slices", "RUN", "--by"), "--by step|rank|name|event: what to group rows by"),
        (("analyze", "slices", "--match", "RUN"), "was read as an option and its value"),
        (("summary", "RUN/nowhere"), "there is no such file or directory"),
        (("report", "RUN", "-o", "RUN"), "cannot be written"),
        (("summary", "RUN", "--run", "zzz"), "no run has the name, id or directory"),
    ],
)
def test_mistakes_are_named(
    run: Path, capfdbinary: Capture, monkeypatch: Patch, arguments: tuple[str, ...], says: str
) -> None:
    message = failed(capfdbinary, monkeypatch, *(argument.replace("RUN", str(run)) for argument in arguments))
    assert says in message
    assert "→" in message or "regular expression" in message


def test_a_report_that_finds_no_room_says_so(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    file = run / "report.html"
    assert "--max-mb" not in called(capfdbinary, monkeypatch, "report", run, "-o", file).decode()
    message = called(capfdbinary, monkeypatch, "report", run, "-o", file, "--max-mb", "0.1").decode()
    assert file.stat().st_size > 100_000
    assert "more than --max-mb 0.1, because the tables, which are always complete, are larger" in " ".join(
        message.split()
    )


def terminal(*arguments: object, columns: int = 80, **environment: str) -> str:
    """What a command writes to a terminal of so many columns, escapes and all. Progress goes elsewhere."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*RANKSCOPE, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment},
    )
    os.close(slave)
    out = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(master)
    assert process.stderr is not None
    message = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, message.decode()
    return out.decode()


def styleless(text: str) -> str:
    """The text without the bold and dim that are our own; an escape that is left is somebody else's."""
    for own in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[1;2m", "\r"):
        text = text.replace(own, "")
    return text


HOSTILE = {
    "ansi": "\x1b[2J\x1b[31mpwned",
    "osc8": "\x1b]8;;https://evil.example\x07click\x1b]8;;\x07",
    "c1": "\x9b31mpwned",
    "markup": "[red]x[/red] [link=https://evil.example]y[/link]",
    "controls": "a\x00b\x07c\x08d\re\nf\x7fg",
    "direction": "safe\u202egnp.exe\u2066",
    "lines": "one\u2028two\u2029three",
    "long": "n" * 10_000,
    "formula": "=cmd|' /C calc'!A0",
    "script": "</script><script>alert(1)</script><!--",
}
ESCAPES = set("\x1b\x07\x08\x00\x7f\x9b\u202e\u2066\u2028\u2029")


def hostile_run(folder: Path) -> Path:
    events = rank_events(0)
    for number, name in enumerate(HOSTILE.values()):
        ids = 9000 + number
        events.append(kineto.launch(1500, 1, correlation=ids, external=ids))
        # Longest of all, so that they are the ones that are shown.
        events.append(kineto.kernel(f"{name}", 1500, 5000 + number, stream=30 + number, correlation=ids, external=ids))
        events.append(kineto.collective(1500, 5000, name=f"nccl{name}", kind=name, group=name, description=name,
                                        dtype=name, stream=60 + number))  # fmt: skip
    content = kineto.trace(events, rank=0, world_size=1, host_name=HOSTILE["ansi"],
                           deviceProperties=[{"id": 0, "name": HOSTILE["osc8"]}])  # fmt: skip
    kineto.write(folder / "rank0.json", content)
    return folder


@pytest.mark.parametrize("arguments", [("summary",), ("analyze", "kernels"), ("analyze", "collectives")])
def test_hostile_names_are_inert_in_a_pipe(
    tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch, arguments: tuple[str, ...]
) -> None:
    folder = hostile_run(tmp_path)
    text = called(capfdbinary, monkeypatch, *arguments, folder).decode()
    assert not set(text) & ESCAPES
    assert max(map(len, text.splitlines())) < 1000
    if arguments != ("summary",):
        assert "[red]x[/red]" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("summary",),
        ("analyze", "collectives", "-f", "json"),
        ("analyze", "collectives", "-f", "csv"),
    ],
)
def test_hostile_names_are_inert_in_a_terminal(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    text = terminal(arguments[0], *arguments[1:2], hostile_run(tmp_path), *arguments[2:], NO_COLOR="1")
    assert not set(styleless(text)) & ESCAPES
    assert "evil.example\x07" not in text


def test_json_gives_hostile_names_back_as_they_are(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    folder = hostile_run(tmp_path)
    written = called(capfdbinary, monkeypatch, "analyze", "kernels", folder, "-f", "json")
    assert not set(written.decode()) & ESCAPES
    names = {row["name"] for row in json.loads(written)["rows"]}
    assert set(HOSTILE.values()) <= names


def test_csv_holds_no_formula(tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "plain"]
    events = [
        kineto.collective(10 * n, 5, name=f"{name}nccl", stream=n, **{"Process Group Ranks": name})
        for n, name in enumerate(formulas)
    ]
    kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0, world_size=1))
    written = called(capfdbinary, monkeypatch, "analyze", "collectives", tmp_path, "-f", "csv").decode()
    rows = list(csv.DictReader(io.StringIO(written, newline="")))
    guarded = {f"'{name}" for name in formulas[:-1]} | {"plain"}
    assert {row["name"].removesuffix("nccl") for row in rows} == {row["group_ranks"] for row in rows} == guarded


def test_an_error_does_not_repeat_what_a_file_tells_the_terminal(
    tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch
) -> None:
    file = tmp_path / "bad\x1b[31m.json"
    file.write_text('{"\x9b31m": 1, "\u202e": 2}', encoding="utf-8")
    message = failed(capfdbinary, monkeypatch, "summary", file)
    assert not set(message) & ESCAPES
    assert "traceEvents" in message


def test_the_summary_keeps_to_a_narrow_terminal(run: Path) -> None:
    text = styleless(terminal("summary", run, columns=60, NO_COLOR="1"))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 60
    assert "ranks 0–1 of 2 · steps 10–11" in text


def test_plain_when_piped(run: Path, capfdbinary: Capture, monkeypatch: Patch) -> None:
    for arguments in (("summary", run), ("analyze", "device_time", run), ("analyses",)):
        assert b"\x1b" not in called(capfdbinary, monkeypatch, *arguments)


def test_parquet_is_not_for_a_terminal(run: Path) -> None:
    with pytest.raises(AssertionError, match="Parquet cannot be shown in a terminal"):
        terminal("analyze", "kernels", run, "-f", "parquet")
    with pytest.raises(AssertionError, match="Parquet cannot be shown in a terminal"):
        terminal("diff", run, run, "-f", "parquet")


def test_bytes_that_are_no_text_do_not_end_a_terminals_output(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; sys.stdout.isatty = lambda: True; from rankscope.cli.writing import write; write({!r}, None)"
    done = subprocess.run(
        [sys.executable, "-c", script.format(b"PAR1\xff\x00\x1b[31m \xc3\xa4")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout.decode()
    assert done.stdout.decode().endswith("ä")


def test_a_misspelled_name_of_a_slice_is_told_its_like(
    run: Path, tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch
) -> None:
    message = failed(capfdbinary, monkeypatch, "slices", "aten::linaer", run)
    assert "no event is called 'aten::linaer'" in message
    assert "nearest: aten::linear" in message
    assert "nearest: aten::linear" in failed(capfdbinary, monkeypatch, "slices", "LINEAR", run)
    message = failed(capfdbinary, monkeypatch, "slices", "zzz+", run, "--regex")
    assert "no event matches 'zzz+'" in message
    # It is there, and only the chosen step has none of it.
    kineto.write(
        tmp_path / "other" / "rank0.json",
        kineto.trace([kineto.step(1, 0, 9), kineto.step(2, 10, 9), kineto.op("aten::mm", 11, 2)], rank=0),
    )
    out = called(capfdbinary, monkeypatch, "slices", "aten::mm", tmp_path / "other", "--steps", "1", "-f", "csv")
    assert len(out.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_leaves_early(tmp_path: Path, form: str) -> None:
    # More than a pipe holds.
    events = [kineto.kernel(f"kernel {n} {'x' * 200}", 10 * n, 5) for n in range(600)]
    kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0, world_size=1))
    with subprocess.Popen(
        [*RANKSCOPE, "analyze", "kernels", str(tmp_path), "-f", form, "--limit", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_a_terminal_without_utf8_shows_what_it_can(run: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*RANKSCOPE, "summary", str(run)], env=environment, capture_output=True)
    assert done.returncode == 0
    assert b"ranks 0?1 of 2 ? steps 10?11" in done.stdout


@pytest.mark.filterwarnings("default")
def test_a_package_that_cannot_be_loaded_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_analyses.cache_clear()
    point = EntryPoint("broken", "no_such_module_anywhere", "rankscope.analyses")
    monkeypatch.setattr(rankscope.analyses, "entry_points", lambda group: [point])
    monkeypatch.setattr(sys, "argv", ["rankscope", "analyses"])
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        listed_analyses.cache_clear()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: the analysis broken of no_such_module_anywhere cannot be loaded: ")


def test_a_worker_does_not_repeat_that_line(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no_such_module_anywhere", "rankscope.analyses")
    with pytest.warns(UserWarning, match="the analysis broken"):
        discovered("rankscope.analyses", Analysis, [point])
    monkeypatch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "kernels" in discovered("rankscope.analyses", Analysis, [point])


PLUGIN = Analysis(
    "of_a_plugin",
    "How often it rains.",
    columns=(),
    parameters=(
        Parameter("at_most", "days to look at", kind="number", default=7),
        Parameter("hot", "only hot days", "flag"),
    ),
)


def test_the_help_of_an_analysis_lists_its_options(capfdbinary: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
    """Without a run: `-o` and its value come first, and no directory is named."""
    known = {**all_analyses(), PLUGIN.name: PLUGIN}
    monkeypatch.setattr(rankscope.analyses, "all_analyses", lambda: known)
    monkeypatch.setattr("rankscope.cli.analyze.all_analyses", lambda: known)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    general = called(capfdbinary, monkeypatch, "analyze", "--help").decode()
    for name, analysis in known.items():
        given = ("analyze", "-o", tmp_path / "out", name.replace("_", "-"), "--help")
        shown = called(capfdbinary, monkeypatch, *given).decode()
        assert analysis.title in shown
        own = [each for each in analysis.parameters if each.name != "sort_by"]  # an option of every analysis
        for parameter in own:
            assert parameter.usage.split()[0] in shown
            assert parameter.doc.strip()[1:40] in shown
            assert not parameter.choices or "|".join(parameter.choices) in shown
        assert ("Options of " in shown) is bool(own)
    assert "Options of " not in general
    assert not (tmp_path / "out").exists()
    assert "[default: 7]" in shown
    assert "--no-hot" not in shown

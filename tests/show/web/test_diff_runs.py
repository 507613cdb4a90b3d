"""`api/diff`: the page shows what `rankscope diff` prints; and headlines and measured tables on the way."""

from __future__ import annotations

from pathlib import Path

from tests.kineto import small_step, trace, write, write_ranks
from tests.show.report.test_measured import SCALING
from tests.show.web.asking import Asking, serving
from tests.show.web.conftest import events

import rankscope
from rankscope.experiments.measure.files import save


def test_two_ranks_of_a_run(server: Asking, folder: Path) -> None:
    answer = server.ask("/api/diff?ranks=0,1").json()
    wanted = rankscope.diff(folder, ranks=(0, 1)).to_json()
    assert (answer["a"]["ranks"], answer["b"]["ranks"]) == ([0], [1])
    columns = list(wanted["columns"])
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*answer["table"]["data"].values(), strict=True)]
    assert rows == wanted["rows"]
    assert answer["gained"] == wanted["findings_gained"]
    assert answer["lost"] == wanted["findings_lost"]


def test_two_runs_of_a_directory(tmp_path: Path, private_cache: Path) -> None:
    for number, name in enumerate(("first", "second")):
        made = [{**each, "ts": each["ts"] + 5e6 * number} for each in small_step(number=number, waiting=5 * number)]
        content = trace(made, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    server = serving(tmp_path / "runs")
    listed = server.ask("/api/runs").json()
    shown, (other,) = listed["shown"], [each["key"] for each in listed["runs"] if each["key"] != listed["shown"]]
    first = server.ask(f"/api/diff?run={shown}&with={other}")
    assert first.status in (200, 409)  # the other one may still be on its way
    assert server.runs.get(other).loaded.wait(300)
    answer = server.ask(f"/api/diff?run={shown}&with={other}").json()
    assert (answer["a"]["id"], answer["b"]["id"]) == ("second-id", "first-id")
    assert "steps" in answer["table"]["data"]["section"]


def test_what_cannot_be_compared_is_refused(server: Asking) -> None:
    assert server.ask("/api/diff").status == 400
    assert server.ask("/api/diff?ranks=0").status == 400
    assert server.ask("/api/diff?ranks=1,0").status == 400
    assert server.ask("/api/diff?with=0123456789ab").status == 404
    unknown = server.ask("/api/diff?ranks=0,7")
    assert unknown.status == 404
    assert "rank 7" in unknown.error["what"]


def test_sentences_and_what_was_measured(tmp_path: Path, private_cache: Path) -> None:
    folder = write_ranks(tmp_path / "run", {0: events(0), 1: events(100)})
    save(SCALING, folder)
    server = serving(folder)
    run = server.runs.shown.loaded.run
    assert run is not None
    analyses = server.ask("/api/summary").json()["analyses"]
    headline = run.analyze("overview")["overview"].headline
    assert headline is not None and analyses["overview"]["headline"] == headline.to_json()
    assert analyses["measured_scaling"]["state"] == "ready"
    table = server.ask("/api/table/measured_scaling").json()
    assert table["data"]["efficiency"] == [1.0, 0.5, None]

"""A run that grows while it is served: each rank and window as it comes, and what is there stays until then."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kineto import small_step, trace, write
from tests.show.web.asking import Asking

import rankscope
from rankscope.show.web import loading as loading_module
from rankscope.show.web.runs import Runs
from rankscope.show.web.security import Gate
from rankscope.show.web.server import make_app

LATER_US = 10_000.0


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Asking]]:
    monkeypatch.setattr(loading_module, "FOLLOW_S", 0.02)
    started: list[Runs] = []

    def start(folder: Path, follow: bool | None = True) -> Asking:
        runs = Runs([str(folder)], follow=follow, executor="serial")
        gate = Gate.of([])
        runs.start()
        started.append(runs)
        return Asking(make_app(runs, gate), gate, runs)

    yield start
    for runs in started:
        runs.stop()
        assert runs.shown.loaded.wait(300)


def window(folder: Path, rank: int, number: int) -> None:
    """A window of two ranks' job, in place of a finished one as capture puts it there: by one rename."""
    events = [{**each, "ts": each["ts"] + LATER_US * number} for each in small_step(number=10 + number)]
    aside = folder / f".rank{rank}.tmp"
    write(aside, trace(events, rank=rank, world_size=2))
    aside.rename(folder / f"rank{rank}_iter{10 + number}_{10 + number}.trace.json")


def until(server: Asking, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The state, once something is true of it."""
    pause = threading.Event()
    for _ in range(6000):
        state: dict[str, Any] = server.ask("/api/state").json()
        if true(state):
            return state
        assert state["phase"] != "failed", state
        pause.wait(0.02)
    raise AssertionError(state)


def ranks_and_steps(server: Asking) -> list[tuple[int, list[int]]]:
    layout = server.ask("/api/timeline").json()
    return [(row["rank"], [step[0] for step in row["steps"]]) for row in layout["ranks"]]


def test_ranks_and_windows_come_one_by_one(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    window(tmp_path, 0, 0)
    server = follow(tmp_path)
    first = until(server, lambda state: state["phase"] == "ready")
    assert first["following"] is True
    assert ranks_and_steps(server) == [(0, [10])]
    tag = server.ask("/api/timeline").headers["etag"]
    seen = 0
    for rank, number, wanted in (
        (1, 0, [(0, [10]), (1, [10])]),
        (0, 1, [(0, [10, 11]), (1, [10])]),
        (1, 1, [(0, [10, 11]), (1, [10, 11])]),
    ):
        window(tmp_path, rank, number)
        state = until(server, lambda state, seen=seen: state["generation"] > seen)  # type: ignore[misc]
        seen = state["generation"]
        assert state["phase"] == "ready"
        assert state["version"] > first["version"]
        assert ranks_and_steps(server) == wanted
    assert server.ask("/api/timeline").headers["etag"] != tag
    # It is what a reader who starts now would see.
    fresh = rankscope.open(tmp_path, executor="serial")
    table = server.ask("/api/table/step_time").json()
    assert table["data"]["window_ns"] == fresh.step_time()["window_ns"].to_list()
    assert table["data"]["rank"] == [0, 0, 1, 1]
    about = server.ask("/api/summary").json()["run"]
    assert about == json.loads(json.dumps({**fresh.about(), "written_by": fresh.written_by}))


def test_a_tile_is_of_the_files_that_are_there(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    window(tmp_path, 0, 0)
    server = follow(tmp_path)
    until(server, lambda state: state["phase"] == "ready")
    question = "/api/events?lanes=0&from=0&to=1000000000&limit=1000"
    before = server.ask(question)
    window(tmp_path, 0, 1)
    until(server, lambda state: state["generation"] == 1)
    after = server.ask(question, ("If-None-Match", before.headers["etag"]))
    assert after.status == 200
    assert len(after.body) > len(before.body)


def test_the_first_trace_is_waited_for(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    server = follow(tmp_path)
    until(server, lambda state: state["what"] == "waiting for the first trace")
    assert server.ask("/api/timeline").status == 409
    window(tmp_path, 1, 0)
    until(server, lambda state: state["phase"] == "ready")
    assert ranks_and_steps(server) == [(1, [10])]


def test_what_cannot_be_read_leaves_what_was_there(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    window(tmp_path, 0, 0)
    server = follow(tmp_path)
    until(server, lambda state: state["phase"] == "ready")
    (tmp_path / "rank1_iter10_10.trace.json").write_text('{"traceEvents": [')
    until(server, lambda state: state["generation"] == 1)
    assert ranks_and_steps(server) == [(0, [10])]
    assert any("rank1_iter10_10" in json.dumps(each) for each in server.ask("/api/summary").json()["findings"])
    # Nothing that can be read is left: the last that could be stays.
    for file in tmp_path.glob("rank*.json"):
        file.write_text("[")
    threading.Event().wait(0.5)
    assert server.ask("/api/state").json()["phase"] == "ready"
    assert ranks_and_steps(server) == [(0, [10])]


def test_without_following_what_comes_is_not_seen(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    window(tmp_path, 0, 0)
    server = follow(tmp_path, False)
    assert server.runs.shown.loaded.wait(300)
    window(tmp_path, 1, 0)
    state = server.ask("/api/state").json()
    assert (state["following"], state["generation"]) == (False, 0)
    assert ranks_and_steps(server) == [(0, [10])]


def of_job(folder: Path, rank: int, job: int) -> None:
    """A window of one of several jobs that have no id: other processes, an hour later."""
    events = [
        {**each, "pid": each["pid"] + 10 * job if isinstance(each["pid"], int) else each["pid"]}
        for each in small_step()
    ]
    folder.mkdir(exist_ok=True)
    aside = folder / f".rank{rank}.tmp"
    write(aside, trace(events, rank=rank, world_size=2, base_time_ns=(1_700_000_000 + 3600 * job) * 10**9))
    aside.rename(folder / f"rank{rank}.trace.json")


def test_another_run_without_an_id_leaves_the_one_that_is_shown(tmp_path: Path, follow: Callable[..., Asking]) -> None:
    for rank in (0, 1):
        of_job(tmp_path / "first", rank, 0)
    of_job(tmp_path / "second", 0, 1)
    server = follow(tmp_path)
    until(server, lambda state: state["phase"] == "ready")
    listed = server.ask("/api/runs").json()
    other = next(row["key"] for row in listed["runs"] if row["key"] != listed["shown"])
    assert server.runs.get(other).loaded.wait(300)
    asked = f"/api/diff?run={listed['shown']}&with={other}"
    assert [finding["id"] for finding in server.ask(asked).json()["lost"]] == ["missing-ranks"]
    for rank in (0, 1):
        of_job(tmp_path / "third", rank, 2)
    until(server, lambda state: len(server.ask("/api/runs").json()["runs"]) == 3)
    again = server.ask("/api/runs").json()
    assert again["shown"] == listed["shown"]
    assert len({row["key"] for row in again["runs"]}) == 3
    assert server.ask("/api/summary").json()["run"]["name"].endswith("second")
    of_job(tmp_path / "second", 1, 1)
    until(server, lambda _: len(ranks_and_steps(server)) == 2)
    assert server.ask(asked).json()["lost"] == []  # compared again, with the rank that came

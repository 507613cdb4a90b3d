"""The state of a watched job over HTTP: at once, and as server-sent events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.answers.watch.jobs import MS, SimulatedJob
from tests.kineto import write_ranks
from tests.show.web.asking import serving
from tests.show.web.conftest import events

from rankscope.show.web import watch_feed
from rankscope.show.web.responses import RefusedError
from rankscope.show.web.watch_feed import WatchFeed


def slow(rank: int, _step: int, place: str) -> int:
    return 40 * MS if rank == 1 and place == "backward" else 0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "cache"))
    folder = write_ranks(tmp_path / "run", {0: events(0), 1: events(100)})
    SimulatedJob(ranks=2, slow=slow).write(folder)
    return folder


def test_the_state_of_a_watched_job(run: Path) -> None:
    server = serving(run)
    assert server.ask("/api/state").json()["watched"] is True
    found = server.ask("/api/watch").json()
    assert [each["rank"] for each in found["stragglers"]] == [1]
    assert found["sentences"][0].startswith("Rank 1 delays the other ranks: ")
    assert found["ranks"] == [{"rank": rank, "last_step": 59, "state": "running"} for rank in range(2)]
    assert (found["running"], found["hang"]) == (True, None)
    series = found["history"]["series"]
    assert list(series) == ["rank 0", "rank 1"]
    assert [step for step, _ in series["rank 1"]] == list(range(60))
    assert 80 * MS < series["rank 1"][10][1] < 120 * MS


def test_a_run_without_a_log_has_none(run: Path, tmp_path: Path) -> None:
    server = serving(write_ranks(tmp_path / "other", {0: events(0)}))
    assert server.ask("/api/state").json()["watched"] is False
    answered = server.ask("/api/watch")
    assert (answered.status, answered.error["what"]) == (404, "this job has no log")


def test_a_log_that_has_not_begun_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    with pytest.raises(RefusedError) as refused:
        WatchFeed([str(tmp_path)]).text()
    assert refused.value.status == 409


def test_of_many_ranks_the_chart_has_the_slowest_and_the_fastest(tmp_path: Path) -> None:
    SimulatedJob(ranks=20, steps=10).write(tmp_path)
    series = json.loads(WatchFeed([str(tmp_path)]).text())["history"]["series"]
    assert list(series) == ["slowest rank", "fastest rank"]
    assert all(most[1] >= least[1] for most, least in zip(*series.values(), strict=True))


class Browser:
    """Takes events until it has had enough."""

    def __init__(self, enough: int) -> None:
        self.events: list[tuple[str, Any]] = []
        self._enough = enough

    async def receive(self) -> dict[str, str]:
        if len(self.events) >= self._enough:
            return {"type": "http.disconnect"}
        await asyncio.sleep(3600)
        raise AssertionError

    async def open(self, feed: WatchFeed, on_event: Any) -> None:
        request = Request({"type": "http", "headers": [], "path": "/", "query_string": b""}, self.receive)
        response = await feed.stream(request)
        assert response.media_type == "text/event-stream"
        async for text in feed._events(request):
            kind, _, data = text.rpartition("data: ")
            self.events.append((kind.strip(), json.loads(data)))
            on_event(len(self.events))


def test_events_come_when_something_has_changed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_feed, "LOOK_S", 0.01)
    log = run / "watch" / "rank0.jsonl"

    def on_event(count: int) -> None:
        if count == 1:
            with log.open("a") as file:
                file.write('{"step":60,"start_ns":1,"ns":1000}\n')
        elif count == 2:
            for path in (run / "watch").iterdir():
                path.unlink()
            (run / "watch").rmdir()

    browser = Browser(enough=3)
    asyncio.run(browser.open(WatchFeed([str(run)]), on_event))
    kinds = [kind for kind, _ in browser.events]
    assert kinds == ["", "", "event: unavailable"]
    steps = [[rank["last_step"] for rank in data["ranks"]] for kind, data in browser.events if not kind]
    assert steps == [[59, 59], [60, 59]]

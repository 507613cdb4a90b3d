"""Every address of the protocol, on a small run whose numbers are worked by hand."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.kineto import collective, kernel, small_step, trace, write
from tests.show.web.asking import Asking, serving

from rankscope.engine.pipeline import Run
from rankscope.show.report.embed.timeline import grid_of
from rankscope.show.report.html_report import payload
from rankscope.show.timeline import build as drawing_module
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.web import server as server_module
from rankscope.show.web.runs import Runs
from rankscope.show.web.security import Gate
from rankscope.show.web.server import make_app


def layout(server: Asking) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("/api/timeline").json()
    return found


def columns(server: Asking, address: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    answer = server.ask(address)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/octet-stream"
    head, found = read_column_file(answer.body)
    return head, {name: values.tolist() for name, values in found.items()}


def lanes_of(server: Asking, rank: int, kind: str) -> list[int]:
    found = layout(server)
    tracks = [each for each in found["tracks"] if each["rank"] == rank and each["kind"] == kind]
    return [lane for each in tracks for lane in range(each["lanes"][0], sum(each["lanes"]))]


def place_of(server: Asking, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = server.ask(f"/api/search?q={name}&rank={rank}").json()["hit"]
    return found


def test_what_is_ready(server: Asking) -> None:
    state = server.ask("/api/state").json()
    assert state["phase"] == "ready"
    assert {"timeline", "heat", "overview", "clock"} <= set(state["ready"])
    assert state["error"] is None
    assert server.ask("/api/state").headers["cache-control"] == "no-store"


def test_the_run_and_its_tables_are_as_in_the_report(server: Asking) -> None:
    run = server.runs.shown.loaded.run
    assert run is not None
    report = json.loads(json.dumps(payload(run, grid=grid_of(run))))
    summary = server.ask("/api/summary").json()
    assert summary["run"] == report["run"]
    assert summary["findings"] == report["findings"]
    assert all(each["place"] is not None for each in summary["findings"] if each["ranks"] or each["steps"])
    assert set(summary["analyses"]) >= set(report["analyses"])
    # Its events are where findings lead to, its calls in the pane of a measured range.
    assert not {"evidence_events", "call_tree"} & set(summary["analyses"])
    assert all(each["state"] == "ready" for each in summary["analyses"].values())
    for name, expected in report["analyses"].items():
        table = server.ask(f"/api/table/{name}").json()
        assert table == expected
        assert summary["analyses"][name]["state"] == "ready"
        assert summary["analyses"][name]["rows"] == len(next(iter(expected["data"].values())))


def test_tiles_of_the_whole_rank(server: Asking) -> None:
    found = layout(server)
    own = [each["lanes"][0] for each in found["tracks"] if each["kind"] == "rank"]
    level = found["levels"] - 1
    _, tile = columns(server, f"/api/tiles?level={level}&first=0&bins=100&lanes={own[0]},{own[1]}")
    busy: dict[tuple[int, str], float] = {}
    for lane, category, ns in zip(tile["busy_lane"], tile["busy_category"], tile["busy_ns"], strict=True):
        key = lane, found["categories"][category]["name"]
        busy[key] = busy.get(key, 0) + ns
    # Two kernels of 50 µs and two collectives of 300 µs; on rank 1 the second is 100 µs late and as much shorter.
    assert busy == {
        (0, "compute"): 100_000, (0, "communication"): 600_000,
        (1, "compute"): 100_000, (1, "communication"): 500_000,
    }  # fmt: skip


def test_events_of_a_window(server: Asking) -> None:
    lanes = lanes_of(server, 0, "stream")
    text = ",".join(map(str, lanes))
    head, found = columns(server, f"/api/events?lanes={text}&from=0&to=150000")
    assert head["more"] is False
    assert sorted(zip(found["start_ns"], found["end_ns"], strict=True)) == [(100_000, 150_000)]
    head, found = columns(server, f"/api/events?lanes={text}&from=0&to=5000000&limit=2")
    assert head["more"] is True
    assert len(found["row"]) == 2


def test_names_are_other_people_s_text_and_come_as_they_are(server: Asking) -> None:
    names = server.ask("/api/names").json()
    assert names["next"] is None
    assert "<img src=x onerror=alert(1)>" in names["names"]
    assert server.ask("/api/names?from=2").json()["names"] == names["names"][2:]
    assert server.ask("/api/names?from=99").json() == {"names": [], "next": None}


def test_many_names_come_in_parts(server: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = server.ask("/api/names").json()["names"]
    monkeypatch.setattr(server_module, "NAMES_BYTES", 20)
    got, at = [], 0
    while at is not None:
        part = server.ask(f"/api/names?from={at}").json()
        got += part["names"]
        at = part["next"]
    assert got == whole


def test_search_goes_forward_and_back_over_all_ranks(server: Asking) -> None:
    hits, at = [], {"start_ns": -1, "lane": -1, "row": -1}
    while True:
        address = f"/api/search?q=GEMM&after={at['start_ns']}&lane={at['lane']}&row={at['row']}"
        found = server.ask(address).json()
        assert found["hits"] == 4
        if found["hit"] is None:
            break
        assert found["index"] == len(hits)
        at = found["hit"]
        hits.append(at)
    assert [hit["name"] for hit in hits] == ["gemm<4>"] * 4
    assert [hit["start_ns"] for hit in hits] == sorted(hit["start_ns"] for hit in hits)
    assert len({(hit["lane"], hit["row"]) for hit in hits}) == 4
    back = hits[-1]
    for expected in reversed(hits[:-1]):
        address = (
            f"/api/search?q=gemm&after={back['start_ns']}&lane={back['lane']}&row={back['row']}&direction=previous"
        )
        back = server.ask(address).json()["hit"]
        assert back == expected
    assert server.ask("/api/search?q=nothing-like-it").json() == {"hit": None, "hits": 0, "index": -1}
    assert server.ask("/api/search?q=gemm&rank=1").json()["hits"] == 2


def test_search_by_expression_by_name_and_as_a_list(server: Asking) -> None:
    every = server.ask("/api/search?q=gemm&count=10").json()
    assert every["first"] == 0
    assert [hit["name"] for hit in every["listed"]] == ["gemm<4>"] * 4
    assert every["listed"][0] == every["hit"]
    assert server.ask("/api/search?q=gemm&first=3&count=2").json()["listed"] == every["listed"][3:]
    assert server.ask("/api/search?q=gemm&first=99&count=2").json()["listed"] == []
    assert server.ask("/api/search?q=^GEMM%3C\\d%3E$&match=regex&count=10").json()["listed"] == every["listed"]
    assert server.ask("/api/search?q=^emm&match=regex").json()["hits"] == 0
    first, second = every["listed"][:2]
    place = f"lane={first['lane']}&row={first['row']}&after={first['start_ns']}"
    assert server.ask(f"/api/search?match=name&{place}").json() == {"hit": second, "hits": 4, "index": 1}
    assert server.ask(f"/api/search?match=name&lane={first['lane']}&row=99999").status == 404
    assert server.ask("/api/search?match=name").status == 404
    # The names of kernels that are templates are long.
    assert server.ask(f"/api/search?q={'a' * 3000}").json()["hits"] == 0
    for wrong in ("q=(&match=regex", "q=a&match=fuzzy", "match=regex", "q=a&count=100000"):
        assert server.ask(f"/api/search?{wrong}").status == 400


def test_a_kernel_whole(server: Asking) -> None:
    hit = place_of(server, "gemm", 0)
    found = server.ask(f"/api/event?lane={hit['lane']}&row={hit['row']}").json()
    assert (found["name"], found["category"], found["rank"], found["step"]) == ("gemm<4>", "compute", 0, 10)
    assert (found["start_ns"], found["end_ns"]) == (100_000, 150_000)
    assert (found["launch"]["start_ns"], found["launch"]["end_ns"]) == (30_000, 35_000)
    assert (found["operator"]["name"], found["operator"]["start_ns"]) == ("aten::mm", 10_000)
    assert "[[2,3],[3,4]]" in found["shapes"]
    assert found["args"]["stream"] == 7
    assert found["collective"] is None
    statistics = found["statistics"]
    assert (statistics["count"], statistics["total_ns"], statistics["mean_ns"]) == (4, 200_000, 50_000)
    assert statistics["steps"] == [
        {"step": 10, "count": 2, "total_ns": 100_000},
        {"step": 11, "count": 2, "total_ns": 100_000},
    ]
    assert statistics["ranks"] == [{"rank": r, "count": 2, "total_ns": 100_000} for r in (0, 1)]


def test_a_collective_on_every_rank(server: Asking) -> None:
    found = server.ask("/api/search?q=ncclDevKernel&after=1000000&rank=0").json()["hit"]
    event = server.ask(f"/api/event?lane={found['lane']}&row={found['row']}").json()
    collective = event["collective"]
    assert (collective["name"], collective["sequence"], collective["bytes"]) == ("all_reduce", 1, 4096)
    members = collective["members"]
    assert [(m["rank"], m["start_ns"], m["end_ns"], m["wait_ns"]) for m in members] == [
        (0, 1_200_000, 1_500_000, 100_000), (1, 1_300_000, 1_500_000, 0),
    ]  # fmt: skip
    for member in members:
        other = server.ask(f"/api/event?lane={member['lane']}&row={member['row']}").json()
        assert (other["rank"], other["start_ns"]) == (member["rank"], member["start_ns"])
        assert other["collective"] == collective


def test_a_number_in_the_group_is_said_if_all_ranks_count_alike(tmp_path: Path, private_cache: Path) -> None:
    """Without `Seq` each rank counts from the first that it recorded; rank 1 has one more before the common ones."""
    many = [kernel("work", 1000 * n, 20, **{"blocks per SM": 0.06}) for n in range(6)]
    for rank in (0, 1):
        sizes = [1, 2, 3, 4, 5, 6][0 if rank else 1 :]
        made = [collective(1000 * n + 100, 50, elements=1024 * n) for n in sizes]
        write(tmp_path / "run" / f"rank{rank}.json", trace([*many, *made], rank=rank, world_size=2))
    server = serving(tmp_path / "run")
    frame = server.runs.shown.loaded.results["collectives"].frame
    pairs = frame.drop_nulls("match").group_by("match").agg(pl.col("sequence").n_unique(), pl.len())
    assert pairs.filter((pl.col("sequence") > 1) & (pl.col("len") == 2)).height > 0  # as the ranks count, they differ
    found = server.ask("/api/search?q=ncclDevKernel&rank=0").json()["hit"]
    event = server.ask(f"/api/event?lane={found['lane']}&row={found['row']}").json()
    assert len(event["collective"]["members"]) == 2
    assert event["collective"]["sequence"] is None
    assert "is_collective" not in event["args"]
    hit = server.ask("/api/search?q=work&rank=0").json()["hit"]
    event = server.ask(f"/api/event?lane={hit['lane']}&row={hit['row']}").json()
    assert event["args"]["blocks_per_sm"] == 0.06  # as it was written, not as four bytes hold it


def test_an_operator_has_the_python_around_it(server: Asking) -> None:
    hit = place_of(server, "aten", 1)
    found = server.ask(f"/api/event?lane={hit['lane']}&row={hit['row']}").json()
    assert found["stack"] == ["train.py(7): step"]
    assert found["category"] == "host_op"


def test_a_row_past_the_end_is_no_event(server: Asking) -> None:
    for address in ("lane=0&row=100000", "lane=100000&row=0"):
        assert server.ask(f"/api/event?{address}").status == 404


def test_a_range_measured(server: Asking) -> None:
    head, found = columns(server, "/api/range?from=120000&to=260000")
    names = [each["name"] for each in layout(server)["categories"]]
    busy = {
        (rank, names[category]): (ns, count)
        for rank, category, ns, count in zip(
            *(found[f"busy_{name}"] for name in ("rank", "category", "ns", "count")), strict=True
        )
    }
    for rank in (0, 1):
        assert busy[rank, "compute"] == (30_000, 1)  # 120–150 of the kernel
        assert busy[rank, "communication"] == (60_000, 1)  # 200–260 of the collective
        assert busy[rank, "runtime"] == (5_000, 1)
        assert busy[rank, "annotation"] == (140_000, 1)  # the step
        assert busy[rank, "python"] == (140_000, 1)
    assert found["top_self_ns"] == sorted(found["top_self_ns"], reverse=True)
    assert all(own <= total for own, total in zip(found["top_self_ns"], found["top_ns"], strict=True))
    every = server.ask("/api/names").json()["names"]
    own = dict(zip((every[name] for name in found["top_name"]), found["top_self_ns"], strict=True))
    assert own["gemm<4>"] == 60_000
    # The step encloses everything, and is no name to look at.
    assert not any(name.startswith("ProfilerStep") for name in own)
    assert head["left_out"] == []
    _, one = columns(server, "/api/range?from=120000&to=260000&ranks=1")
    assert set(one["busy_rank"]) == {1}
    _, none = columns(server, "/api/range?from=99000000&to=99000001")
    assert none["busy_ns"] == none["top_ns"] == []


def test_counters(server: Asking) -> None:
    head, found = columns(server, "/api/counters?rank=0&from=0&to=3000000")
    assert [(each["name"], each["unit"], each["low"], each["high"]) for each in head["counters"]] == [
        ("memory:cuda:0:allocated", "bytes", 0, 2048), ("memory:cuda:0:reserved", "bytes", 0, 8192),
        ("queue", "count", 0, 1),
    ]  # fmt: skip
    rows = list(zip(found["counter"], found["at_ns"], found["low"], found["high"], strict=True))
    assert rows[:2] == [(0, 15_000, 1024, 1024), (0, 1_015_000, 2048, 2048)]
    # One launch waits from 30 to 100 µs, the next from 130 to 200.
    assert [(at, high) for counter, at, _, high in rows if counter == 2][:4] == [
        (30_000, 1), (100_000, 0), (130_000, 1), (200_000, 0),
    ]  # fmt: skip
    # What held before the window comes first.
    _, late = columns(server, "/api/counters?rank=0&from=1500000&to=3000000")
    assert (0, 1_015_000.0) in zip(late["counter"], late["at_ns"], strict=True)
    assert server.ask("/api/counters?rank=7&from=0&to=1").status == 404


def test_the_heat_of_ranks_and_steps(server: Asking) -> None:
    found = server.ask("/api/heat").json()
    assert (found["ranks"], found["steps"]) == ([0, 1], [10, 11])
    assert found["wait_ns"] == [0, 100_000, 0, 0]
    # Two ends tell the clocks to 100 µs: a lateness of as much is not known. The first collective of the group is not
    # compared: what came before it is not recorded alike.
    assert found["lateness_ns"] == [None, 0, None, 0]
    assert found["waited_ns"] == [None, 0, None, 0]
    assert len(found["step_ns"]) == 4


def test_answers_are_compressed_as_the_browser_takes_it(server: Asking) -> None:
    plain = server.ask("/api/timeline")
    assert "content-encoding" not in plain.headers
    for accepted, way in (
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("*", "zstd"),
    ):
        answer = server.ask("/api/timeline", accept_encoding=accepted)
        assert answer.headers["content-encoding"] == way
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.body == plain.sent
        assert len(answer.sent) < len(plain.sent) / 2
        assert answer.headers["content-length"] == str(len(answer.sent))
    assert "content-encoding" not in server.ask("/api/timeline", accept_encoding="identity, gzip;q=x").headers


def test_what_has_not_changed_is_not_sent_again(server: Asking) -> None:
    for address in ("/", "/api/timeline", "/api/tiles?level=0&first=0&bins=10&lanes=0", "/api/summary", "/api/names"):
        answer = server.ask(address)
        assert answer.headers["cache-control"] == "private, no-cache"
        again = server.ask(address, if_none_match=f'"x", W/{answer.headers["etag"]}')
        assert (again.status, again.sent) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
    one, other = (server.ask(f"/api/tiles?level=0&first={at}&bins=10&lanes=0").headers["etag"] for at in (0, 1))
    assert one != other
    # It is asked of whoever has the cookie, too.
    assert server.ask("/", cookie="", if_none_match=server.ask("/").headers["etag"]).status == 401


BAD = {
    "/api/tiles?level=99&first=0&bins=10&lanes=0": 400, "/api/tiles?level=-1&first=0&bins=10&lanes=0": 400,
    "/api/tiles?level=x&first=0&bins=10&lanes=0": 400, "/api/tiles?level=0&first=0&bins=10": 400,
    "/api/tiles?level=0&first=0&bins=0&lanes=0": 400, "/api/tiles?level=0&first=0&bins=99999999&lanes=0": 400,
    "/api/tiles?level=0&first=0&bins=10&lanes=9999": 404, "/api/tiles?level=0&first=0&bins=10&lanes=3,1": 400,
    "/api/tiles?level=0&first=0&bins=10&lanes=0-999999999": 404, "/api/tiles?level=0&first=0&bins=10&lanes=-1": 400,
    "/api/tiles?level=0&first=0&bins=10&lanes=1,1": 400, "/api/tiles?level=0&first=1e3&bins=10&lanes=0": 400,
    "/api/tiles?level=0&first=0&bins=10&lanes=0;1": 400,
    "/api/tiles?level=0&first=99999999999999999999&bins=1&lanes=0": 400,
    "/api/events?lanes=0&from=10&to=0": 400, "/api/events?lanes=0&from=0": 400,
    "/api/events?lanes=0&from=0&to=1&limit=99999999": 400, "/api/search?q=": 400, "/api/search?q=a&direction=up": 400,
    f"/api/search?q={'a' * 4001}": 400, "/api/table/none": 404, "/api/table/__init__": 404,
    "/api/calls?from=0&to=1&by=none": 400, "/api/calls?from=1&to=0": 400,
    "/api/range?from=0&to=1&ranks=x": 400, "/api/names?from=-1": 400, "/api/event?lane=0": 400,
    "/api/counters?rank=0&from=0&to=1&points=1": 400, "/api/state?run=none": 404,
}  # fmt: skip


@pytest.mark.parametrize("address", BAD)
def test_a_bad_question_is_refused_with_what_is_wrong(server: Asking, address: str) -> None:
    answer = server.ask(address)
    assert answer.status == BAD[address], answer.body
    assert answer.error["what"]


def test_several_runs_under_keys_that_say_nothing(tmp_path: Path, private_cache: Path) -> None:
    for number, name in enumerate(("first", "second")):
        events = [{**each, "ts": each["ts"] + 5e6 * number} for each in small_step(number=number)]
        content = trace(events, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    server = serving(tmp_path / "runs")
    listed = server.ask("/api/runs").json()
    assert len(listed["runs"]) == 2
    shown, (other,) = listed["shown"], [each["key"] for each in listed["runs"] if each["key"] != listed["shown"]]
    assert "second" in next(each["name"] for each in listed["runs"] if each["key"] == shown)  # the latest
    assert not any(part in key for key in (shown, other) for part in ("first", "second", "id"))
    assert server.ask(f"/api/state?run={other}").status == 200
    assert server.runs.get(other).loaded.wait(300)
    about = [server.ask(f"/api/summary?run={key}").json()["run"]["id"] for key in (shown, other)]
    assert about == ["second-id", "first-id"]
    assert server.ask("/api/runs").json()["shown"] == shown
    one = serving(tmp_path / "runs", run_id="first")
    assert one.ask("/api/summary").json()["run"]["id"] == "first-id"


def test_where_the_chosen_run_is_not_there_the_others_are_offered(tmp_path: Path, private_cache: Path) -> None:
    for number, name in enumerate(("first", "second")):
        events = [{**each, "ts": each["ts"] + 5e6 * number} for each in small_step(number=number)]
        content = trace(events, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    server = serving(tmp_path / "runs", run_id="nope")
    state = server.ask("/api/state").json()
    assert state["phase"] == "failed"
    assert "no run has the name, id or directory 'nope'" in state["error"]["what"]
    listed = server.ask("/api/runs").json()
    assert [each["name"] for each in listed["runs"]] == ["first", "second"]
    assert (listed["place"], listed["study"]) == ("runs", False)
    assert listed["shown"] not in {each["key"] for each in listed["runs"]}
    keys = [each["key"] for each in listed["runs"]]
    assert keys == [each["key"] for each in serving(tmp_path / "runs").ask("/api/runs").json()["runs"]]
    assert server.ask(f"/api/state?run={keys[1]}").status == 200
    assert server.runs.get(keys[1]).loaded.wait(300)
    assert server.ask(f"/api/summary?run={keys[1]}").json()["run"]["id"] == "second-id"
    assert server.ask("/api/state?run=" + "0" * 12).status == 404


@pytest.mark.parametrize("ids", [True, False])
def test_a_link_to_a_run_holds_when_the_server_is_started_again(tmp_path: Path, private_cache: Path, ids: bool) -> None:
    for number, name in enumerate(("first", "second")):
        events = [{**each, "ts": each["ts"] + 5e9 * number} for each in small_step(number=number)]
        extra = {"rankscope": {"schema_version": 1, "run_id": f"{name}-id"}} if ids else {"pid": 100 + number}
        write(tmp_path / "runs" / name / "rank0.json", trace(events, rank=0, world_size=1 + number, **extra))
    before = serving(tmp_path / "runs").ask("/api/runs").json()
    keys = [each["key"] for each in before["runs"]]
    assert len(set(keys)) == 2
    first = next(key for key in keys if key != before["shown"])
    runs = Runs([str(tmp_path / "runs")], executor="serial")
    server = Asking(make_app(runs, gate := Gate()), gate, runs)
    # Nothing is read yet, and the page is not sent away.
    assert server.ask(f"/api/runs?run={first}").json()["runs"][0]["key"] == first
    assert server.ask(f"/api/state?run={first}").json()["phase"] == "reading"
    asked = server.ask("/api/runs").json()["shown"]
    runs.start()
    assert runs.shown.loaded.wait(300)
    after = server.ask(f"/api/runs?run={first}").json()
    assert [each["key"] for each in after["runs"]] == keys
    assert after["shown"] == before["shown"]
    assert runs.get(first).loaded.wait(300)
    assert runs.get(first) is not runs.shown
    named = {each["key"]: each["name"] for each in after["runs"]}
    assert server.ask(f"/api/summary?run={first}").json()["run"]["world_size"] == 1, named
    assert runs.get(asked) is runs.shown
    assert asked in [each["key"] for each in server.ask(f"/api/runs?run={asked}").json()["runs"]]
    assert server.ask("/api/state?run=" + "0" * 12).status == 404


def test_what_cannot_be_read_is_said_to_the_page(tmp_path: Path, private_cache: Path) -> None:
    bad = tmp_path / "bad" / "rank0.json"
    bad.parent.mkdir()
    bad.write_text("no trace")
    server = serving(bad)
    state = server.ask("/api/state").json()
    assert state["phase"] == "failed"
    assert state["error"]["path"] == str(bad)
    assert state["error"]["hint"]
    assert server.ask("/").status == 200
    assert server.ask("/api/summary").status == 200
    assert server.ask("/api/runs").status == 200
    assert server.ask("/api/timeline").status == 409


def test_the_first_views_are_there_while_the_rest_is_being_made(
    tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run" / "rank0.json", trace([kernel("k", 1, 2)], rank=0))
    go, drawn = threading.Event(), drawing_module.draw_rank

    def slow(*arguments: Any) -> Any:
        assert go.wait(300)
        return drawn(*arguments)

    monkeypatch.setattr(drawing_module, "draw_rank", slow)
    runs = Runs([str(tmp_path / "run")], executor="serial")
    gate = Gate()
    server = Asking(make_app(runs, gate), gate, runs)
    assert server.ask("/api/state").json()["phase"] == "reading"  # before anything has begun
    assert server.ask("/api/summary").json()["run"] == {}
    assert server.ask("/api/runs").json()["runs"][0]["ranks"] is None
    runs.start()
    until = time.monotonic() + 300
    while server.ask("/api/state").json()["phase"] != "drawing" and time.monotonic() < until:
        time.sleep(0.01)
    assert server.ask("/api/summary").json()["run"]["ranks"] == [0]
    assert server.ask("/api/summary").json()["analyses"]["overview"]["state"] == "pending"
    assert server.ask("/api/table/clock").status == 200
    assert server.ask("/api/timeline").status == 409
    version = server.ask("/api/state").json()["version"]
    go.set()
    assert runs.shown.loaded.wait(300)
    assert server.ask("/api/state").json()["version"] > version
    assert server.ask("/api/timeline").status == 200


def test_an_analysis_that_fails_leaves_the_others(
    tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run" / "rank0.json", trace(small_step(), rank=0))
    analyze = Run.analyze

    def some(self: Run, *names: str, **more: Any) -> Any:
        if "kernels" in names:
            raise ValueError("broken")
        return analyze(self, *names, **more)

    monkeypatch.setattr(Run, "analyze", some)
    server = serving(tmp_path / "run")
    assert server.ask("/api/state").json()["phase"] == "ready"
    assert server.ask("/api/table/overview").status == 200
    assert server.ask("/api/table/kernels").status == 404
    summary = server.ask("/api/summary").json()
    assert summary["analyses"]["kernels"]["state"] == "failed"
    assert any("broken" in json.dumps(found) and "kernels" in json.dumps(found) for found in summary["findings"])


def test_the_critical_path_of_a_step(server: Asking) -> None:
    rows = server.ask("/api/table/critical_path").json()["data"]
    for rank, path in ((None, "all ranks"), (0, "rank"), (1, "rank")):
        head, found = columns(server, f"/api/path?at=500000{'' if rank is None else f'&rank={rank}'}")
        assert (head["step"], head["of_rank"]) == (10, rank)
        parts = zip(found["rank"], found["start_ns"], found["end_ns"], strict=True)
        total = sum(end - start for of, start, end in parts if rank is None or of == rank)
        table = zip(rows["path"], rows["step"], rows["rank"], rows["path_ns"], strict=True)
        assert total == sum(ns for name, step, of, ns in table if (name, step) == (path, 10) and rank in (None, of))
    assert server.ask("/api/path?at=500000&rank=9").status == 404
    assert server.ask("/api/path?at=x").status == 400


def test_the_gaps_of_a_row(server: Asking) -> None:
    table = server.ask("/api/table/idle").json()["data"]
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    assert {row["stream"] is None for row in rows} == {True, False}
    for row in rows:
        named = "&".join(f"{name}={row[name]}" for name in ("device", "stream", "detail") if row[name] is not None)
        head, found = columns(server, f"/api/gaps?rank={row['rank']}&cause={row['cause']}&{named}")
        assert head["count"] == len(found["idle_ns"]) == row["gaps"]
        assert (sum(found["idle_ns"]), found["idle_ns"][0]) == (row["idle_ns"], row["max_ns"])
        assert found["start_ns"][0] == row["longest_start_ns"]
    assert columns(server, "/api/gaps?rank=0&cause=nothing&device=7")[0]["count"] == 0
    assert server.ask("/api/gaps?rank=9&cause=nothing").status == 404
    assert server.ask("/api/gaps?rank=x").status == 400

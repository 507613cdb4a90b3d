"""SQL from the page: who may ask, what comes back, and where rows are in the timeline."""

from __future__ import annotations

import io
import threading
from typing import Any

import polars as pl
import pytest
from tests.show.web.asking import Asking, send

from rankscope.engine.query.examples import EXAMPLES
from rankscope.show.web import queries

pytestmark = pytest.mark.slow  # a query runs in a process of its own


def rows(server: Asking, sql: str, **more: Any) -> Any:
    answer = send(server, {"sql": sql, **more})
    assert answer.status == 200, answer.json()
    return answer.json()


def test_a_query_needs_the_cookie_the_origin_and_json(server: Asking) -> None:
    asked = {"sql": "SELECT 1 AS one"}
    assert send(server, asked).json()["data"] == {"one": [1]}
    assert send(server, asked, cookie="").status == 401
    assert send(server, asked, cookie=f"{server.gate.cookie}=wrong").status == 401
    assert send(server, asked, origin="https://evil.example").status == 403
    assert send(server, asked, host="evil.example").status == 403
    assert send(server, asked, sec_fetch_site="cross-site").status == 403
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert send(server, asked, content_type=kind).status == 415, kind
    assert server.ask("/api/query").status == 404
    assert server.ask("/api/summary", method="POST").status == 405
    assert server.ask("/api/query", method="PUT").status == 405


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"sql": 1}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_query_is_refused(server: Asking, body: bytes) -> None:
    assert send(server, body).status == 400


def test_a_long_body_is_refused(server: Asking) -> None:
    assert send(server, b" " * 600_000).status == 413


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"sql": "DROP TABLE host_ops"}, "only SELECT"),
        ({"sql": "SELECT * FROM read_csv('x')"}, "tables alone"),
        ({"sql": "SELECT * FROM host_opps"}, "host_opps"),
        ({"sql": "SELECT 1", "limit": 0}, "limit"),
        ({"sql": "SELECT 1", "limit": True}, "limit"),
        ({"sql": "SELECT 1", "timeout_s": 1e9}, "timeout_s"),
        ({"sql": "SELECT 1", "format": "xlsx"}, "format"),
        ({"sql": "SELECT * FROM result_call_tree"}, "result_call_tree"),
    ],
)
def test_what_is_wrong_with_a_query_is_a_400(server: Asking, asked: Any, what: str) -> None:
    answer = send(server, asked)
    assert answer.status == 400
    assert what in answer.error["what"]


def test_near_names_are_offered(server: Asking) -> None:
    assert "host_ops" in send(server, {"sql": "SELECT * FROM host_opps"}).error["hint"]
    assert "end_ns" in send(server, {"sql": "SELECT endd_ns FROM host_ops"}).error["hint"]


def test_rows_have_their_place_in_the_timeline(server: Asking) -> None:
    found = rows(
        server, "SELECT rank, name, start_ns, end_ns FROM device_events WHERE name = 'gemm<4>' ORDER BY rank, start_ns"
    )
    # The first event of each file is its step, at 0 of the run's clock.
    assert found["places"] == [
        [0, 100_000, 150_000],
        [0, 1_100_000, 1_150_000],
        [1, 100_000, 150_000],
        [1, 1_100_000, 1_150_000],
    ]
    assert found["columns"]["start_ns"]["instant"] is True
    assert found["data"]["end_ns"] == [150_000, 1_150_000] * 2


def test_rows_without_a_rank_have_none(server: Asking) -> None:
    found = rows(server, "SELECT name, start_ns FROM device_events")
    assert found["places"] is None


def test_results_are_tables_too(server: Asking) -> None:
    found = rows(server, "SELECT rank, sum(wait_ns) AS waited_ns FROM result_collectives GROUP BY rank ORDER BY rank")
    # Rank 1 comes 100 µs late to the second collective.
    assert found["data"] == {"rank": [0, 1], "waited_ns": [100_000, 0]}


def test_rows_are_cut_at_the_limit_and_it_is_said(server: Asking) -> None:
    assert rows(server, "SELECT name FROM host_ops", limit=3)["truncated"] is True
    assert rows(server, "SELECT name FROM host_ops", limit=4)["truncated"] is False


def test_a_query_that_takes_too_long_is_ended(server: Asking) -> None:
    tables = ", ".join(f"device_events AS t{number}" for number in range(12))
    answer = send(server, {"sql": f"SELECT sum(t0.start_ns * t1.end_ns) AS s FROM {tables}", "timeout_s": 0.5})
    assert answer.status == 400
    assert "longer than 0.5 s" in answer.error["what"]


def test_more_than_a_few_at_once_are_refused(server: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def wait(*_: object) -> Any:
        entered.release()
        leave.wait(60)
        raise queries.RefusedError(400, "done")

    monkeypatch.setattr(queries, "_respond", wait)
    waiting = [threading.Thread(target=send, args=(server, {"sql": "SELECT 1"})) for _ in range(queries.AT_ONCE)]
    for thread in waiting:
        thread.start()
        assert entered.acquire(timeout=60)
    assert send(server, {"sql": "SELECT 1"}).status == 429
    leave.set()
    for thread in waiting:
        thread.join(60)
    assert send(server, {"sql": "SELECT 1"}).status == 400


def test_values_that_json_and_browsers_do_not_have(server: Asking) -> None:
    long = "x" * 20_000
    sql = f"SELECT 9007199254740993 AS large, [1, 2] AS list, CAST('NaN' AS DOUBLE) AS nan, '{long}' AS long"
    found = rows(server, sql)["data"]
    assert found["large"] == ["9007199254740993"]
    assert found["list"] == ["[1, 2]"]
    assert found["nan"] == [None]
    assert len(found["long"][0]) == queries.LONGEST_TEXT


def test_a_file_of_the_rows(server: Asking) -> None:
    answer = send(server, {"sql": "SELECT rank, name FROM host_ops ORDER BY rank", "format": "parquet"})
    assert answer.headers["content-disposition"] == 'attachment; filename="rankscope_query.parquet"'
    assert pl.read_parquet(io.BytesIO(answer.body)).columns == ["rank", "name"]
    arrow = send(server, {"sql": "SELECT rank FROM host_ops", "format": "arrow"})
    assert pl.read_ipc(io.BytesIO(arrow.body)).height == 4


def test_the_schema_names_what_a_query_can_name(server: Asking) -> None:
    schema = server.ask("/api/schema").json()
    tables = {table["name"]: table for table in schema["tables"]}
    assert [column["name"] for column in tables["device_events"]["columns"]][:4] == [
        "rank",
        "file",
        "row_index",
        "start_ns",
    ]
    assert not tables["device_events"]["empty"]
    assert tables["snapshot_blocks"]["empty"]
    assert tables["result_collectives"]["kind"] == "result"
    assert "result_call_tree" not in tables  # `serve` does not compute it
    assert [each["name"] for each in schema["examples"]] == list(EXAMPLES)

"""What is a query, what it names, and what is refused before it runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.engine.query.statement import QueryError, parse_statement
from rankscope.errors import nearest

ALLOWED = [
    "SELECT 1",
    "select * from device_events;",
    "  -- a comment\nSELECT 1 /* another */ ; ",
    "WITH a AS (SELECT 1 AS x) SELECT * FROM a",
    "SELECT name FROM python_frames WHERE name LIKE '%read_csv(%'",
    "SELECT 'it''s; DROP TABLE x' AS t",
    'SELECT "insert" FROM host_ops',
    "SELECT replace(name, 'a', 'b') FROM (SELECT name FROM host_ops) AS t",
    "SELECT extract(year FROM time_us) FROM snapshot_events",
    "SELECT trim(BOTH ' ' FROM name) FROM host_ops",
    "SELECT x FROM unnest([1, 2]) AS t(x)",
    "SELECT a.name IS DISTINCT FROM b.name FROM host_ops a, host_ops b",
]
REFUSED = {
    "": "empty",
    " ; ": "empty",
    "-- only a comment": "empty",
    "DROP TABLE device_events": "only SELECT",
    "INSERT INTO host_ops VALUES (1)": "only SELECT",
    "COPY host_ops TO 'x'": "only SELECT",
    "ATTACH 'x.db'": "only SELECT",
    "PRAGMA database_list": "only SELECT",
    "SET memory_limit = '1GB'": "only SELECT",
    "EXPLAIN SELECT 1": "only SELECT",
    "SELECT 1; SELECT 2": "more than one",
    "SELECT 1; DROP TABLE x": "only SELECT",
    "WITH a AS (SELECT 1) DELETE FROM host_ops": "only SELECT",
    "WITH a AS (DELETE FROM host_ops RETURNING *) SELECT * FROM a": "only SELECT",
    "SELECT * INTO x FROM host_ops": "INTO",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv is not allowed",
    "SELECT * FROM READ_PARQUET('x')": "not allowed",
    "SELECT * FROM \"read_csv\"('x')": "not allowed",
    "SELECT * FROM read_json/**/('x')": "not allowed",
    "SELECT * FROM host_ops, read_csv('x')": "not allowed",
    "SELECT (SELECT content FROM read_blob('x'))": "not allowed",
    "SELECT * FROM glob('*')": "not allowed",
    "SELECT * FROM parquet_metadata('x')": "not allowed",
    "SELECT * FROM query('SELECT 1')": "not allowed",
    "SELECT * FROM duckdb_views()": "not allowed",
    "SELECT getenv('HOME')": "not allowed",
    "SELECT * FROM main.host_ops": "no schema",
    "FROM histogram('host_ops', 'name')": "histogram is not allowed",
    "SELECT json_serialize_plan('SELECT current_setting(''memory_limit'')', optimize := true)": "not allowed",
    "SELECT " + "NOT " * 5000 + "true": "too deeply|[Dd]epth|cannot be read",
    "SELECT '\ud800'": "cannot be read",
    "SELECT 'open": "unterminated",
    "SELECT 1 /* open": "unterminated",
    "SELECT (1": "syntax",
    "SELECT 1" + " " * 100_001: "characters",
}


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_is_allowed(sql: str) -> None:
    assert parse_statement(sql).sql == sql


@pytest.mark.parametrize(("sql", "what"), REFUSED.items())
def test_anything_else_is_refused_with_the_reason(sql: str, what: str) -> None:
    with pytest.raises(QueryError, match=what):
        parse_statement(sql)


def test_what_a_query_names() -> None:
    defined = "WITH a AS (SELECT \"Ko la\", 'result_idle' FROM result_kernels)"
    sql = f"{defined} SELECT count(*) FROM a, Host_Ops -- result_clock"
    found = parse_statement(sql)
    assert found.tables == {"result_kernels", "host_ops"}
    assert found.columns == {"ko la"}
    assert not found.every_column
    assert parse_statement("SELECT k.* FROM kernels AS k").every_column
    assert parse_statement("FROM kernels").every_column
    for row in (
        "SELECT kernels FROM kernels",
        "SELECT max(k) FROM kernels AS k",
        "SELECT c FROM kernels AS k(a, b, c)",
    ):
        assert parse_statement(row).every_column, row
    assert parse_statement("SELECT 1 FROM kernels NATURAL JOIN host_ops").every_column
    assert "start_ns" in parse_statement("SELECT 1 FROM kernels JOIN host_ops USING (start_ns)").columns
    # What a part of a query defines, it defines for that part.
    scoped = "SELECT (WITH pg_settings AS (SELECT 1 AS x) SELECT x FROM pg_settings) AS a, b.name FROM pg_settings AS b"
    assert parse_statement(scoped).tables == {"pg_settings"}
    recursive = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT n FROM t"
    assert not parse_statement(recursive).tables


@given(st.text(alphabet="SELCTread_csv('\"`;-/*)$\\ \n,ABFROM1", max_size=60))
@settings(deadline=None)
def test_any_text_is_a_query_or_refused(text: str) -> None:
    try:
        parse_statement(f"SELECT {text}")
    except QueryError as error:
        assert error.what


@pytest.mark.parametrize(
    ("name", "known", "first"),
    [
        ("device_event", ["device_events", "host_ops"], "device_events"),
        ("duration", ["duration_ns", "start_ns"], "duration_ns"),
        ("wait", ["wait_ns", "name"], "wait_ns"),
        ("COLLECTIVE", ["collectives", "clock"], "collectives"),
    ],
)
def test_near_names(name: str, known: list[str], first: str) -> None:
    assert nearest(name, known)[0] == first


def test_no_near_name() -> None:
    assert nearest("zzz", ["device_events"]) == []

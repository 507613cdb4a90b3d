"""What is a query, and what is refused before any engine sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.query.statement import QueryError, nearest, parse_statement

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
    "EXPLAIN SELECT 1": "only SELECT",
    "(SELECT 1)": "only SELECT",
    "SELECT 1; SELECT 2": "more than one",
    "SELECT 1; DROP TABLE x": "more than one",
    "WITH a AS (SELECT 1) DELETE FROM host_ops": "DELETE",
    "WITH a AS (DELETE FROM host_ops RETURNING *) SELECT * FROM a": "DELETE",
    "SELECT * INTO x FROM host_ops": "INTO",
    "SELECT * FROM read_csv('/etc/passwd')": "no files",
    "SELECT * FROM READ_PARQUET('x')": "no files",
    "SELECT * FROM \"read_csv\"('x')": "no files",
    "SELECT * FROM `scan_ipc`('x')": "no files",
    "SELECT * FROM read_json/**/('x')": "no files",
    "SELECT * FROM host_ops, read_csv('x')": "no files",
    "SELECT * FROM host_ops JOIN read_text('x') AS t ON true": "no files",
    "SELECT (SELECT content FROM read_blob('x'))": "no files",
    "SELECT * FROM glob('*')": "no files",
    "SELECT * FROM parquet_metadata('x')": "no files",
    "SELECT * FROM query('SELECT 1')": "no files",
    "SELECT * FROM duckdb_views()": "no files",
    "SELECT getenv('HOME')": "no files",
    "SELECT * FROM '/etc/passwd'": "no files",
    "SELECT * FROM host_ops JOIN 'x.parquet' AS t ON true": "no files",
    "SELECT 'open": "not closed",
    'SELECT "open': "not closed",
    "SELECT 1 /* open": "not closed",
    "SELECT (1": "parentheses",
    # What one lexer reads as the end of a text, and another does not.
    r"SELECT '\', name, ' FROM read_csv(1) --'": "backslash",
    "SELECT $$'$$, x FROM read_csv('x'), $$'$$": "not supported",
    "SELECT 1" + " " * 100_001: "characters",
}


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_is_allowed(sql: str) -> None:
    assert parse_statement(sql).sql.lower().startswith(("select", "with"))


@pytest.mark.parametrize(("sql", "what"), REFUSED.items())
def test_anything_else_is_refused_with_the_reason(sql: str, what: str) -> None:
    with pytest.raises(QueryError, match=what):
        parse_statement(sql)


def test_names_are_those_outside_texts_and_comments() -> None:
    sql = "SELECT a.\"Ko la\", 'result_idle' FROM result_kernels AS a -- result_clock"
    assert parse_statement(sql).names == {"SELECT", "FROM", "AS", "a", "Ko la", "result_kernels"}


@given(st.text(alphabet="SELCTread_csv('\"`;-/*)$\\ \n,ABFROM1", max_size=60))
def test_no_text_gets_a_file_function_past_the_check(text: str) -> None:
    try:
        parsed = parse_statement(f"SELECT {text}")
    except QueryError:
        return
    outside = "".join(parsed.sql.split("'")[::2])  # what is not within quotes, as any lexer sees it
    assert "read_csv(" not in outside.lower().replace(" ", "").replace("\n", "") or "--" in outside or "/*" in outside


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

"""Queries over a run: what is read, limits, values of every kind, and errors."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest
from tests.analyses.reference import write_reference
from tests.kineto import Event, collective, kernel, write_ranks

from rankscope.engine.pipeline import Run, open_run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.engine.pipeline.sql import QueryOptions, column_of, prepare_query, run_query, tables_of
from rankscope.engine.query import engine
from rankscope.engine.query.statement import QueryError
from rankscope.errors import ConfigError
from rankscope.show.export.query import QUERY_FORMATS
from rankscope.store.schema import SCHEMA_VERSION, TABLES

FILE_ROWS = 1 << 16


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("queries-cache")))
        yield open_run(write_reference(tmp_path_factory.mktemp("queries") / "run"), executor="serial").load()


def test_every_table_has_the_rows_of_all_ranks(run: Run) -> None:
    for name in TABLES:
        frame = run.sql(f"SELECT * FROM {name}")
        expected = [trace.load(name).height for files in run.loaded.ranks.values() for trace in files]
        assert frame.height == sum(expected), name
        assert frame.columns == ["rank", "file", "row_index", *TABLES[name].schema], name
        assert run.sql(f"SELECT count(*) AS n FROM {name}").item() == sum(expected), name


def test_rows_without_columns_are_counted_in_joins(run: Run) -> None:
    own = run.sql("SELECT * FROM device_events").height
    assert run.sql("SELECT count(*) AS n FROM device_events a, device_events b").item() == own**2


def test_row_index_continues_over_the_files_of_a_table(tmp_path: Path) -> None:
    events = [kernel(f"k{number % 7}", number, 1) for number in range(FILE_ROWS + 10)]
    run = open_run(write_ranks(tmp_path / "run", {0: events}), executor="serial")
    assert len(run.loaded.ranks[0][0].files("device_events")) > 1
    found = run.sql("SELECT row_index, start_ns FROM device_events WHERE row_index > 65530")
    assert sorted(found.rows()) == [(row, 1000 * row) for row in range(65_531, FILE_ROWS + 10)]


def test_an_analysis_is_computed_only_if_the_query_names_it(run: Run) -> None:
    fresh = open_run(run.path, executor="serial")
    fresh.sql("SELECT count(*) AS n FROM device_events -- result_kernels")
    assert not fresh.results
    assert fresh.sql("SELECT * FROM result_devices").equals(fresh.devices())
    assert set(fresh.results) == {"devices"}


def test_limit_of_rows(run: Run) -> None:
    sql = "SELECT name FROM device_events"
    assert run.sql(sql, limit_rows=3).height == 3
    assert run_query(run, sql, QueryOptions(3)).truncated
    assert not run_query(run, sql, QueryOptions(24)).truncated
    assert run_query(run, sql, QueryOptions(0)).truncated


@pytest.mark.slow
def test_a_query_is_ended_at_its_limit_of_time(run: Run) -> None:
    tables = ", ".join(f"device_events AS t{number}" for number in range(12))
    with pytest.raises(QueryError, match=r"longer than 0\.5 s"):
        run.sql(f"SELECT sum(t0.start_ns * t1.end_ns) AS s FROM {tables}", timeout_s=0.5)
    with pytest.raises(QueryError, match="was ended"):
        prepare_query(run, "SELECT 1", QueryOptions(timeout_s=60)).run(stopped=lambda: True)


@pytest.mark.parametrize(
    ("sql", "what", "near"),
    [
        ("SELECT * FROM device_event", "device_event", "device_events"),
        ("SELECT * FROM result_colectives", "result_colectives", "result_collectives"),
        ("SELECT strat_ns FROM device_events", "strat_ns", "start_ns"),
        ("SELECT k.nane FROM device_events AS k", "nane", "name"),
    ],
)
def test_a_misspelled_name_gets_the_near_ones(run: Run, sql: str, what: str, near: str) -> None:
    with pytest.raises(QueryError, match=what) as caught:
        run.sql(sql)
    assert near in str(caught.value.hint)


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM information_schema.tables", "SELECT * FROM sqlite_master", "SELECT * FROM PG_VIEWS"]
)
def test_tables_of_the_engine_are_not_shown(run: Run, sql: str) -> None:
    with pytest.raises(QueryError):
        run.sql(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM host_ops, {}",
        "SELECT * FROM host_ops CROSS JOIN LATERAL {}",
        "SELECT * FROM ({} CROSS JOIN host_ops)",
        "SELECT * FROM host_ops WHERE name IN (SELECT name FROM host_ops, {})",
        "WITH a AS (SELECT 1), b AS (SELECT * FROM a, {}) SELECT * FROM b",
    ],
)
def test_functions_of_the_engine_about_itself_are_refused(run: Run, sql: str) -> None:
    for call in ("duckdb_settings()", '"duckdb_views"()', "main.DUCKDB_FUNCTIONS()", "enable_logging()"):
        with pytest.raises(QueryError) as refused:
            run.sql(sql.format(call))
        assert "not allowed" in str(refused.value) or "there is no" in str(refused.value)
    with pytest.raises(QueryError, match="current_setting is not allowed"):
        run.sql("SELECT current_setting('allowed_paths')")
    found = run.sql("SELECT count(*) AS n FROM host_ops, json_each('[1, 2]')")
    assert found.item() == 2 * run.sql("SELECT count(*) AS n FROM host_ops").item()


def test_a_type_that_polars_lacks_gets_a_hint(run: Run) -> None:
    with pytest.raises(QueryError, match="INTERVAL") as refused:
        run.sql("SELECT INTERVAL 1 DAY AS day")
    assert refused.value.hint == "CAST it AS VARCHAR"
    for value in ("'infinity'::timestamp", "'290000-01-01'::date"):
        with pytest.raises(QueryError, match="infinity"):
            run.sql(f"SELECT {value} AS moment")
    assert run.sql("SELECT CAST(INTERVAL 1 DAY AS VARCHAR) AS day").item() == "1 day"
    with pytest.raises(QueryError, match=r"out of range|Overflow"):
        run.sql("SELECT 9223372036854775807 + rank AS n FROM device_events WHERE rank > 0")


def test_duckdb_writes_no_temporary_files() -> None:
    with duckdb.connect(":memory:", config=engine._SETTINGS) as connection:
        assert connection.sql("SELECT current_setting('temp_directory')").fetchall() == [("",)]


def drifting(rank: int) -> list[Event]:
    """Collectives that begin at the same instant, on a clock that is late and, on rank 1, fast."""
    return [
        collective((1000 * number + 5000 * rank) * (1 + 1e-4 * rank) + 0.001 * number, 50, sequence=number)
        for number in range(40)
    ]


def test_instants_are_on_the_timeline_s_clock(tmp_path: Path) -> None:
    run = open_run(write_ranks(tmp_path / "run", {rank: drifting(rank) for rank in (0, 1)}), executor="serial")
    clock = clock_of(run)
    assert clock.ranks[1].drift
    rows = run.sql("SELECT rank, start_ns, end_ns FROM device_events ORDER BY start_ns, rank")
    for rank in (0, 1):
        stored = run.loaded.ranks[rank][0].load("device_events", ("start_ns", "end_ns"))
        of_rank = rows.filter(pl.col("rank") == rank)
        for name in ("start_ns", "end_ns"):
            assert of_rank[name].to_list() == clock.ranks[rank].run_time(0, stored[name].to_numpy()).tolist()
    assert rows["start_ns"].min() == 0
    # The two of a collective are together, although their own times are milliseconds apart.
    assert rows["rank"].to_list() != sorted(rows["rank"])
    assert rows["start_ns"].diff().gather_every(2, 1).max() < 1_000
    late = run.sql("SELECT max(start_ns) AS last FROM device_events WHERE start_ns >= 5 AND rank = 1")
    assert late.item() == rows.filter(pl.col("rank") == 1)["start_ns"].max()


def test_the_documented_query_gives_the_spread_of_each_collective(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "queries.md").read_text(encoding="utf-8")
    (sql,) = re.findall(r"start it:\n\n```sql\n(.*?)```", text, re.DOTALL)
    late = [
        [collective(1000 * number + (300 + number) * rank, 500 - (300 + number) * rank) for number in range(5)]
        for rank in (0, 1)
    ]
    run = open_run(write_ranks(tmp_path / "run", dict(enumerate(late))), executor="serial")
    found = run.sql(sql)
    assert found["ranks"].to_list() == [2] * 5
    # They end together, so the ranks' clocks are the same.
    assert found.select("first_ns", "spread_ns").rows() == [
        (1_000_000 * n, 300_000 + 1000 * n) for n in (4, 3, 2, 1, 0)
    ]


def test_instants_wait_for_the_clock_where_nothing_may_be_computed(run: Run) -> None:
    sql = "SELECT max(start_ns) AS last FROM device_events"
    for named in (sql, "SELECT * FROM device_events", "SELECT d.* FROM device_events AS d"):
        with pytest.raises(QueryError, match="not known yet"):
            prepare_query(run, named, results={})
    assert prepare_query(run, "SELECT count(*), 2 * 3 AS six FROM device_events", results={}).run().frame.height == 1
    found = prepare_query(run, sql, results={}, clock=clock_of(run)).run()
    assert found.frame.equals(run.sql(sql))


def test_duckdb_reads_nothing_but_the_run(run: Run, tmp_path: Path) -> None:
    """Whatever gets past the check of the text."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n", encoding="utf-8")
    files = [engine.TraceFiles(0, 0, tuple(run.loaded.ranks[0][0].files("host_ops")))]
    for sql in (f"SELECT * FROM read_csv('{secret}')", f"SELECT * FROM '{secret}'", f"COPY host_ops TO '{tmp_path}/x'"):
        with pytest.raises(QueryError, match=r"disabled|file system operations"):
            engine.run(engine.Request(sql, {"host_ops": files}))
    with pytest.raises(QueryError, match="locked"):
        engine.run(engine.Request("SET memory_limit = '1GB'", {"host_ops": files}))
    assert not (tmp_path / "x").exists()


def test_without_duckdb_the_error_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(QueryError, match="not installed") as refused:
        run.sql("SELECT 1")
    assert refused.value.hint == "pip install 'rankscope[sql]'"


def test_options_that_are_not_valid(run: Run) -> None:
    for options in ({"limit_rows": -1}, {"timeout_s": 0}, {"timeout_s": math.nan}):
        with pytest.raises(ConfigError):
            run.sql("SELECT 1", **options)


NESTED = "SELECT [1, 2] AS list, 'a\nb' AS text, CAST('NaN' AS DOUBLE) AS nan, NULL AS nothing, '=1+1' AS formula"


@pytest.mark.parametrize("form", QUERY_FORMATS)
def test_values_of_every_kind_are_written(run: Run, form: str) -> None:
    result = run_query(run, NESTED, QueryOptions())
    written = QUERY_FORMATS[form](result, run.about())
    if form == "json":
        value = json.loads(written)
        assert value["rows"] == [{"list": [1, 2], "text": "a\nb", "nan": None, "nothing": None, "formula": "=1+1"}]
        assert value["tables_version"] == SCHEMA_VERSION
        assert value["truncated"] is False
    elif form == "csv":
        frame = pl.read_csv(io.BytesIO(written))
        assert frame["list"].item() == "[1, 2]"
        assert frame["formula"].item() == "'=1+1"
    elif form == "parquet":
        assert pl.read_parquet(io.BytesIO(written))["list"].to_list() == [[1, 2]]
    else:
        frame = pl.read_ipc(io.BytesIO(written))
        assert (frame["text"].item(), frame["nan"].item()) == ("a\nb", None)


def test_units_come_from_names() -> None:
    assert column_of("start_ns", pl.Int64()).instant
    assert column_of("total_ns", pl.Int64()).unit == "ns"
    assert column_of("wait_ns", pl.Int64()).unit == "ns"
    assert not column_of("wait_ns", pl.Int64()).instant
    assert column_of("my_bytes", pl.Float64()).unit == "bytes"
    assert column_of("name", pl.String()).unit == ""
    assert column_of("anything", pl.Int64()).unit == ""


def test_every_analysis_is_a_table() -> None:
    tables = tables_of()
    assert "result_stragglers" in tables
    assert set(TABLES) <= set(tables)
    assert "result_clock" not in tables_of(["kernels"])

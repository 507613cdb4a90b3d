"""The report: one file, its data inert inside it, complete, and nothing asked of the network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import kineto
from tests.analyses.reference import rank_events, write_reference
from tests.show.report.reading import read_report

import rankscope
from rankscope.analyses import all_analyses
from rankscope.engine.pipeline.clock import RankClock, RunClock, in_run_time
from rankscope.errors import RankscopeError
from rankscope.results import Analysis, Column, Result
from rankscope.show.report import html_report
from rankscope.show.report import page as page_module
from rankscope.show.report.embed.timeline import grid_of
from rankscope.show.report.html_report import payload, table_of, write_report
from rankscope.show.report.page import MARKER, page_template

HOSTILE = [
    "</script><script>alert(1)</script>",
    "</SCRIPT\t>",
    "<!--<script>",
    "-->",
    "]]>",
    "a\u2028b\u2029c",
    "&lt;/script&gt;",
    MARKER,
    "\\u003c/script\\u003e",
    "\x00\x1b[31m\x7f\x9b",
    "\u202egnp.exe",
    "'\"`${1}",
    "n" * 10_000,
]


def data_of(page: bytes) -> tuple[bytes, Any]:
    """The text of the data's script element, as a browser's parser ends it, and what JSON makes of it."""
    start = page.index(b'id="rankscope-data">') + len(b'id="rankscope-data">')
    ending = re.compile(rb"</script[\s/>]", re.IGNORECASE).search(page, start)
    assert ending is not None
    text = page[start : ending.start()]
    return text, json.loads(text)


def hostile_run(folder: Path) -> rankscope.Run:
    events = rank_events(0)
    for number, name in enumerate(HOSTILE):
        events.append(kineto.kernel(name, 1500, 10, stream=30 + number))
        events.append(kineto.collective(1500, 10, kind=name, group=name, description=name, stream=60 + number))
    content = kineto.trace(events, rank=0, world_size=2, host_name=HOSTILE[0], deviceProperties=[{"name": HOSTILE[2]}])
    kineto.write(folder / "rank0.json", content)
    return rankscope.open(folder, executor="serial")


def test_hostile_names_stay_inside_the_data(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    page = write_report(run)
    text, found = data_of(page)
    assert not set(b"<>&") & set(text)
    assert "\u2028".encode() not in text and "\u2029".encode() not in text
    wanted = json.loads(json.dumps(payload(run, None, html_report.grid_of(run))))
    assert {**found, "generated_at": ""} == {**wanted, "generated_at": ""}
    assert set(HOSTILE) <= set(found["analyses"]["kernels"]["data"]["name"])


def test_the_page_around_the_data_is_the_template(tmp_path: Path) -> None:
    page = write_report(hostile_run(tmp_path))
    text, _ = data_of(page)
    template = page_template().encode()
    assert template.count(MARKER.encode()) == 1
    head, _, tail = template.partition(MARKER.encode())
    assert page.startswith(head + text)
    assert page.endswith(tail)
    # Beside the data nothing but blocks of base64, each an element that no browser runs.
    blocks = page[len(head) + len(text) : len(page) - len(tail)]
    name = rb'</script>\n<script type="application/octet-stream" data-rankscope="[a-z]+(-[0-9]+)?">'
    assert re.fullmatch(rb"(" + name + rb"[A-Za-z0-9+/=]*)+", blocks)


def test_long_tables_are_packed_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = hostile_run(tmp_path)
    wanted = {**json.loads(json.dumps(payload(run, grid=grid_of(run)))), "generated_at": ""}
    plain, _ = read_report(write_report(run))
    assert {**plain, "generated_at": ""} == wanted
    monkeypatch.setattr(html_report, "PACKED_FROM", 100)
    page = write_report(run)
    text, found = data_of(page)
    assert not set(b"<>&") & set(text)
    assert all(table["data"] is None for table in found["analyses"].values())
    packed, blocks = read_report(page)
    assert {**packed, "generated_at": ""} == wanted
    assert "tables" not in blocks


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5))
def test_any_text_reads_back_equal_and_inert(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).translate(html_report._INERT)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_numbers_are_those_of_the_analyses(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    _, found = data_of(write_report(run))
    always = {name for name, each in all_analyses().items() if each.shown_empty}
    assert always <= set(found["analyses"]) <= {name for name, each in all_analyses().items() if each.in_report}
    assert all(
        table["data"] and next(iter(table["data"].values()))
        for name, table in found["analyses"].items()
        if name not in always
    )
    for name, table in found["analyses"].items():
        result = run.analyze(name)[name]
        expected = json.loads(json.dumps(result.frame.to_dict(as_series=False)))
        for column in result.analysis.instants:
            # Instants are counted from the first event of the row's own file.
            began = [
                run.loaded.ranks[r][w].info.start_ns for r, w in zip(expected["rank"], expected["window"], strict=True)
            ]
            assert None not in began
            expected[column] = [
                None if at is None else at - start for at, start in zip(expected[column], began, strict=True)
            ]
        assert table["data"] == expected
        assert list(table["columns"]) == result.frame.columns
        assert table["title"] == result.analysis.title
        assert table["truncated"] is None
    assert found["run"] == {**run.about(), "written_by": run.written_by}


def test_long_tables_are_cut_to_the_longest_rows_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "MAX_ROWS", 3)
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    tables = payload(run)["analyses"]
    assert tables["device_time"]["truncated"] is None
    assert tables["collectives"]["truncated"] == {"shown": 3, "total": 8}
    kept = tables["collectives"]["data"]["duration_ns"]
    assert sorted(kept, reverse=True) == sorted(run.collectives()["duration_ns"], reverse=True)[:3]
    # In their own order, not by length.
    places = list(zip(tables["collectives"]["data"]["rank"], tables["collectives"]["data"]["start_ns"], strict=True))
    assert places == sorted(places)
    assert tables["step_time"]["truncated"] == {"shown": 3, "total": 4}


def test_a_row_without_a_duration_is_not_among_the_longest(tmp_path: Path) -> None:
    record = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    by_rank = {
        0: [kineto.collective(10, 5), kineto.collective(30, 50)],
        1: [kineto.op("record_param_comms", 5, 2, **record)],  # a call without a kernel
    }
    result = rankscope.open(kineto.write_ranks(tmp_path, by_rank), executor="serial").analyze("collectives")[
        "collectives"
    ]
    assert result.frame["duration_ns"].null_count() == 1
    shown = table_of(result, 2, headline=None)
    assert shown["data"]["duration_ns"] == [5_000, 50_000]


def test_absurd_numbers_are_null(tmp_path: Path) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.trace([kineto.kernel("k", 0, 5, **{"blocks per SM": 1e300})], rank=0))
    _, found = data_of(write_report(rankscope.open(tmp_path, executor="serial")))
    assert found["analyses"]["kernels"]["data"]["blocks_per_sm"] == [None]


def test_no_address_in_the_page(tmp_path: Path) -> None:
    page = write_report(rankscope.open(write_reference(tmp_path), executor="serial")).decode()
    # Names of XML's own, which nothing fetches.
    addresses = {url for url in re.findall(r"https?://[^\s\"'<>)]+", page) if "www.w3.org" not in url}
    assert addresses == set()
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy.group(1)
    assert "unsafe" not in policy.group(1)


def test_a_template_without_a_place_for_the_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    monkeypatch.setattr(page_module, "_read", lambda: "<html></html>")
    with pytest.raises(RankscopeError, match="no place for the data"):
        write_report(run)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_the_report_of_eight_h100_is_small_enough_for_a_ticket(shared_traces: Path) -> None:
    page = write_report(rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial"))
    assert len(page) < 5_000_000


@pytest.mark.parametrize(("window", "start"), [([0, 1], [5, 257]), (None, [5, 207])])
def test_instants_are_on_the_run_s_clock(window: list[int] | None, start: list[int]) -> None:
    own = {} if window is None else {"window": window}
    frame = pl.DataFrame({"rank": [3, 3], **own, "start_ns": [1_005, 1_207]})
    columns = tuple(Column(name, pl.Int64, "", "what", instant=name == "start_ns") for name in frame.columns)
    clock = RunClock(0, 300, True, None, {3: RankClock((-1_000, -950), 0.0, 0, 0, None)})
    moved = in_run_time(Result(Analysis("some", "Some.", columns), frame), clock)
    assert table_of(moved, headline=None)["data"]["start_ns"] == start

"""The example of the documentation: its tables, followed by the equations and by rankscope."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.whatif.pencil import Job

from rankscope.whatif.gains import in_order
from rankscope.whatif.scenarios import AsPeers, Network

PAGE = Path(__file__).parents[2] / "docs" / "what_a_fix_would_save.md"
MS = 1_000_000


def table(heading: str) -> list[list[str]]:
    """The rows of the page's table that begins with these columns."""
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    first = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading}"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def job() -> Job:
    cells = [[int(cell) * MS for cell in row] for row in table("segment | host, rank 0")]
    columns = list(zip(*cells, strict=True))
    return Job([columns[1], columns[2]], [columns[3], columns[4]], columns[5], 3)


def test_the_page_solves_the_equations() -> None:
    ends = [int(re.findall(r"\d+", row[5])[-1]) for row in table("segment | H, rank 0")]
    assert [end / MS for end in job().ends()] == pytest.approx(ends, abs=0.01)
    # Each result in the table is that of its own sum.
    for row in table("segment | H, rank 0"):
        for cell in row[3:5]:
            first, second, device, result = map(int, re.findall(r"\d+", cell))
            assert max(first, second) + device == result
        latest = max(int(re.findall(r"\d+", cell)[-1]) for cell in row[3:5])
        arrival, transfer, end = map(int, re.findall(r"\d+", row[5]))
        assert (arrival, arrival + transfer) == (latest, end)


def test_rankscope_gives_the_page_s_steps_and_gains() -> None:
    rows = {row[0]: row[1:] for row in table("what is different")}
    run = job().run()
    recorded = run.fidelity
    assert recorded.recorded_ns / MS == pytest.approx(float(rows["as recorded"][0]), abs=0.01)
    assert recorded.error < 1e-6
    peer, network = in_order(run, [AsPeers((1,)), Network(2)])
    found = {
        "rank 1 like its peer": (peer.alone_ns, peer.gain_alone_ns),
        "a network 2 times as fast": (network.alone_ns, network.gain_alone_ns),
        "both": (network.step_ns, peer.gain_ns + network.gain_ns),
    }
    for name, (step, gain) in found.items():
        assert [step / MS, gain / MS] == pytest.approx([float(cell) for cell in rows[name]], abs=0.01), name
    # The text: alone it gains 2, after the other 3.
    assert [network.gain_alone_ns / MS, network.gain_ns / MS] == pytest.approx([2, 3], abs=0.01)
    assert peer.component == "host"


def test_the_text_s_ends_of_collectives() -> None:
    as_peer = replace(job(), host=[job().host[0]] * 2)
    faster = replace(job(), transfer=[MS] * 3)
    both = replace(as_peer, transfer=[MS] * 3)
    text = PAGE.read_text(encoding="utf-8")
    for changed, ends in ((as_peer, (7, 13, 19)), (faster, (6, 16, 21)), (both, (6, 11, 16))):
        assert [end / MS for end in changed.ends()] == pytest.approx(ends, abs=0.01)
    assert "segment 2 would end at 13" in text.replace("\n", " ")
    assert "it is 6, 11 and 16" in text.replace("\n", " ")

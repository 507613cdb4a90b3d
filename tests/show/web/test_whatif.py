"""What-if answers: those of `rankscope whatif`, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.analyses.test_whatif import events
from tests.kineto import write_ranks
from tests.show.web.asking import Asking, call

import rankscope
from rankscope.whatif.lanes import KINDS, LANES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 loads 100 µs longer, in steps of 300 µs."""
    return write_ranks(tmp_path_factory.mktemp("served") / "run", {0: events(0), 1: events(100)})


def asked(server: Asking, options: str = "") -> Any:
    return server.ask(f"/api/whatif?with={quote(options)}")


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ("--fix rank=1", {"fix": "rank=1"}),
        ("--fix rank=1:compute --network 2x", {"fix": "rank=1:compute", "network": "2x"}),
        ("--overlap --no-launches", {"overlap": True, "no_launches": True}),
        ("--balance ranks", {"balance": "ranks"}),
    ],
)
def test_the_step_is_that_of_the_command(server: Asking, folder: Path, options: str, chosen: dict[str, Any]) -> None:
    answer = asked(server, options).json()
    frame = rankscope.open(folder, executor="serial").whatif(**chosen)
    assert answer["step_ns"] == frame["step_ns"][-1]
    assert answer["recorded_ns"] == frame["alone_ns"][0]
    assert sorted(answer["options"]) == sorted(options.replace(" --", "\n--").split("\n"))


def test_as_recorded_with_what_can_be_changed(server: Asking) -> None:
    answer = asked(server).json()
    assert answer["step_ns"] == answer["replayed_ns"]
    assert answer["ranks"] == [0, 1]
    assert answer["offers"]["ranks"] == "0-1"
    options = [each["option"] for each in answer["offers"]["scenarios"]]
    assert "--overlap" in options
    assert "--balance stages" not in options  # both ranks run one program
    for each in options:
        assert asked(server, each).status == 200


def test_lanes_are_within_the_step(server: Asking) -> None:
    answer = asked(server, "--fix rank=1").json()
    for picture in (answer["recorded"], answer["replayed"]):
        columns = [picture[name] for name in ("rank", "lane", "kind", "start_ns", "end_ns", "busy_ns")]
        assert len({len(column) for column in columns}) == 1
        for rank, lane, kind, start, end, busy in zip(*columns, strict=True):
            assert (rank, lane, kind) in {(r, la, k) for r in (0, 1) for la in LANES for k in KINDS}
            assert 0 <= start < end <= picture["duration_ns"]
            assert busy <= end - start + 1
    assert answer["recorded"]["duration_ns"] == 300_000
    assert answer["replayed"]["duration_ns"] == pytest.approx(200_000, abs=2_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--fix rank=7", "rank 7 cannot be replayed"),
        ("--fix rank=0,1", "cannot be compared"),
        ("--fix rank=1:gpu", "no component 'gpu'"),
        ("--fix rank=-1", "--fix"),
        ("--balance stages", "one program"),
        ("--network 0x", "--network"),
        ("--network nan", "--network"),
        ("--steps 3", "--steps"),
        ("<script>", "<script>"),
        ("--fix rank=0-999999", "too many scenarios"),
        (" ".join(["--overlap"] * 1000), "too many scenarios"),
    ],
)
def test_what_the_run_cannot_tell_is_refused(server: Asking, options: str, said: str) -> None:
    answered = asked(server, options)
    assert answered.status == 400
    assert said in answered.error["what"]
    assert asked(server).status == 200


def test_nothing_is_sent_with_it(server: Asking) -> None:
    assert server.ask("/api/whatif", method="POST").status == 405
    headers = [("host", "127.0.0.1:8000"), ("cookie", f"{server.gate.cookie}={server.gate.session}")]
    assert call(server.app, "/api/whatif", headers, "GET", b"x" * (8 << 20)).status == 200  # a body is not read
    assert server.ask("/api/whatif?run=000000000000").status == 404
    assert server.ask("/api/whatif", cookie="").status == 401

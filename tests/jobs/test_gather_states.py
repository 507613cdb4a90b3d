"""Files that change while a job runs, gathered from several hosts, more than once."""

from __future__ import annotations

import pytest

from rankscope.errors import RankscopeError
from rankscope.jobs.gather import gather, parse_source
from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT, HangDump, Heartbeat
from rankscope.rundir.watch_files import Header, Request, to_json, write_request


def log(folder, rank, steps, *, segment=0, began=1, first=0):
    path = folder / "watch" / f"rank{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = to_json(Header(1, rank, segment, run_id="r1", host=f"h{rank}", pid=7, began_ns=began))
    lines = [f'{{"step":{step},"start_ns":{step},"ns":1}}' for step in range(first, first + steps)]
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def beat(folder, rank, time_ns, restart=0, **fields):
    path = folder / "hang" / f"rank{rank}.heartbeat.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Heartbeat(HEARTBEAT_FORMAT, rank, time_ns, restart_count=restart, **fields).to_json())
    return path


def collect(run, *sources):
    gather(run, [parse_source(str(each)) for each in sources])


def test_logs_and_dumps_come_with_the_traces_and_requests_do_not(tmp_path):
    for rank in (0, 1):
        host = tmp_path / f"host{rank}"
        log(host, rank, 3)
        beat(host, rank, 5)
        (host / "hang" / f"rank{rank}.json").write_text(HangDump(DUMP_FORMAT, rank, time_ns=4).to_json())
        (host / "watch" / f"rank{rank}.000000.jsonl.gz").write_bytes(b"earlier")
        write_request(host, Request("same", 3, reason=f"on {rank}"))
    collect(tmp_path / "all", tmp_path / "host0", tmp_path / "host1")
    found = sorted(path.relative_to(tmp_path / "all").as_posix() for path in (tmp_path / "all").rglob("*.*"))
    assert found == sorted(
        f"{name.format(rank)}"
        for rank in (0, 1)
        for name in (
            "hang/rank{}.heartbeat.json",
            "hang/rank{}.json",
            "watch/rank{}.000000.jsonl.gz",
            "watch/rank{}.jsonl",
        )
    )


def test_a_log_that_has_grown_or_begun_its_next_segment_replaces_the_earlier_state(tmp_path):
    host, run = tmp_path / "host", tmp_path / "all"
    path = log(host, 0, 3)
    collect(run, host)
    earlier = path.read_bytes()
    log(host, 0, 9)
    collect(run, host)
    assert (run / "watch" / "rank0.jsonl").read_bytes() == path.read_bytes()
    # An older copy of it replaces nothing.
    later = path.read_bytes()
    path.write_bytes(earlier)
    collect(run, host)
    assert (run / "watch" / "rank0.jsonl").read_bytes() == later
    log(host, 0, 1, segment=1, first=9)
    collect(run, host)
    assert (run / "watch" / "rank0.jsonl").read_bytes() == path.read_bytes()


def test_logs_of_two_processes_are_not_states_of_one(tmp_path):
    log(tmp_path / "one", 0, 3)
    log(tmp_path / "other", 0, 9, began=2)
    with pytest.raises(RankscopeError, match="differ"):
        collect(tmp_path / "all", tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("order", [("one", "other"), ("other", "one")])
def test_the_heartbeat_of_the_latest_attempt_is_kept(tmp_path, order):
    beat(tmp_path / "one", 0, 9_000, host="h0")
    path = beat(tmp_path / "other", 0, 5_000, restart=1, host="h1")
    collect(tmp_path / "all", *(tmp_path / each for each in order))
    assert (tmp_path / "all" / "hang" / "rank0.heartbeat.json").read_bytes() == path.read_bytes()

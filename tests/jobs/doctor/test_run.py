"""What the doctor says of a run: manifests, windows, logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.jobs.doctor.checks import wrong
from tests.jobs.parts import part

from rankscope.jobs.doctor import logs, run
from rankscope.rundir.manifest import LostWindow, RankManifest, RunManifest, WrittenTrace, to_json
from rankscope.rundir.metadata import ClockAnchor

# --- a run ----------------------------------------------------------------------------------------------------


def manifest(rank: int, **given) -> RankManifest:
    return RankManifest("r1", rank, world_size=2, host="h0", pid=rank, state="finished", **given)


def a_run(folder: Path, *ranks: RankManifest) -> Path:
    (folder / "ranks").mkdir(parents=True)
    (folder / "run.json").write_bytes(to_json(RunManifest("r1", world_size=2, ranks="all")))
    for each in ranks:
        (folder / "ranks" / f"rank{each.rank}.json").write_bytes(to_json(each))
    return folder


def test_a_run_that_is_well(tmp_path):
    folder = part(tmp_path / "a", (0, 1, 2, 3))
    assert wrong(run.checks(folder))["unfinished"].what == "unfinished: .rank9.tmp"
    (folder / ".rank9.tmp").unlink()
    assert not wrong(run.checks(folder))


def test_a_run_that_is_not_there(tmp_path):
    assert wrong(run.checks(tmp_path / "x"))["directory"].status == "fail"


def test_a_run_that_is_not_whole(tmp_path):
    folder = part(tmp_path / "a", (0, 1))
    (folder / "rank1_iter3_4.trace.json.gz").unlink()
    found = wrong(run.checks(folder))
    assert found["missing"].what == "ranks 2-3 of 4 are not here"
    assert "rankscope gather" in found["missing"].fix
    assert "rank1_iter3_4.trace.json.gz" in found["traces"].what
    assert found["traces"].fix == f"rankscope gather {folder} HOST:DIR copies them again"
    # Of what is cut its manifest is the proof, and gather puts the whole one in its place.
    (folder / "rank1_iter3_4.trace.json.gz").write_bytes(b"cut")
    assert wrong(run.checks(folder))["traces"].fix == f"rankscope gather {folder} HOST:DIR copies them again"


def test_what_ranks_say(tmp_path):
    def anchors(*pairs):
        return tuple(ClockAnchor(wall, monotonic) for wall, monotonic in pairs)

    second = 10**9
    folder = a_run(
        tmp_path / "a",
        manifest(
            0,
            failed=(LostWindow(1, 2, "No space left on device"),),
            warnings=("odd",),
            environment={"settings": {"NCCL_NET": "IB", "CUDA_VISIBLE_DEVICES": "0"}, "cpu_affinity": "3"},
            clock_anchors=anchors((0, 0), (second, second), (3 * second + 5_000_000, 3 * second)),
        ),
        manifest(
            1,
            skipped=(LostWindow(1, 2, "the one before is still written"),),
            environment={"settings": {"CUDA_VISIBLE_DEVICES": "1"}, "cpu_affinity": "3"},
            # Set right slowly, as it should be: 300 ppm.
            clock_anchors=anchors((0, 0), (100 * second + 30_000_000, 100 * second)),
        ),
    )
    found = wrong(run.checks(folder))
    assert found["failed"].what == "1 window failed on rank 0: No space left on device"
    assert found["failed"].status == "fail"
    assert found["skipped"].status == "warn"
    assert found["warned"].what == "rank 0: odd"
    assert found["settings"].what == "NCCL_NET differs: 'IB' on rank 0, not set on rank 1"
    assert found["cores"].what == "ranks 0-1 share core 3 of h0"
    assert found["clock"].what == "the clock of h0 jumped by 5.0 ms while rank 0 ran"


def test_windows_that_only_some_ranks_have(tmp_path):
    busy = "the previous trace was still being written on rank 1"
    warned = f"steps 5 to 6 were not recorded: {busy}"
    ranks = []
    for rank, steps in ((0, (3, 5)), (1, (3,))):
        written = tuple(WrittenTrace(f"rank{rank}_iter{n}_{n + 1}.trace.json", n, n + 1, 2) for n in steps)
        ranks.append(manifest(rank, written=written, skipped=(LostWindow(8, 9, busy),), warnings=(warned,)))
    folder = a_run(tmp_path / "a", *ranks)
    for each in ranks:
        for trace in each.written:
            (folder / trace.file).write_text("{}")
    found = wrong(run.checks(folder))
    assert found.keys() == {"windows", "skipped"}
    assert found["windows"].what == "no trace on rank 1 of steps 5-6, which rank 0 recorded"
    assert found["skipped"].what == f"1 window skipped on ranks 0-1: {busy}"
    # What is still running may still write it.
    running = replace(ranks[1], state="running")
    (folder / "ranks" / "rank1.json").write_bytes(to_json(running))
    assert "windows" not in wrong(run.checks(folder))


def test_a_window_that_is_kept_elsewhere_is_not_lost(tmp_path):
    reasons = ("OSError: disk full", "TraceKeptError: [Errno 28] disk full; the trace is kept as /tmp/kept-a/b: add it")
    failed = tuple(LostWindow(1, 2, reason) for reason in reasons)
    folder = a_run(tmp_path / "a", manifest(0, failed=failed))
    lost, kept = (each for each in run.checks(folder) if each.name == "failed")
    assert "lost" in lost.fix
    assert "lost" not in kept.fix
    assert "rankscope gather RUN" in kept.fix


# --- logs -----------------------------------------------------------------------------------------------------

LINES = [
    ("sockets", "n1:7:9 [0] NCCL INFO Using network Socket"),
    ("plugin", "n1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
    ("interface", "n1:7:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"),
    ("connection", "n1:7:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<4>"),
    (
        "connection",
        "n1:7:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to n2 failed : No route to host",
    ),
    ("locked memory", "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate"),
    ("shared memory", "n1:7:9 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
    ("shared memory", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)"),
    ("direct", "n1:7:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ("timeout", "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 6 ms"),
    ("memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
    (
        "system error",
        "torch.distributed.DistBackendError: NCCL error, unhandled system error (run with NCCL_DEBUG=INFO)",
    ),
    ("peer to peer", "n1:7:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0"),
    ("warning", "n1:7:9 [0] transport/net.cc:3 NCCL WARN something that nobody has thought of"),
]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_signs_in_logs(tmp_path, name, line):
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "n1.7.log").write_text(f"NCCL version 2.27.3\n{line}\n{line}\n")
    found = wrong(logs.checks(tmp_path))
    assert list(found) == [name]
    assert line[:40] in found[name].what
    assert "(2 lines in 1 file)" in found[name].what


def test_logs_that_are_well_and_logs_that_are_not_there(tmp_path):
    assert list(logs.checks(tmp_path)) == []
    (tmp_path / "train.out").write_text("NCCL INFO Using network IB\nloss 3.2\n")
    assert [c.what for c in logs.checks(tmp_path)] == ["no problems in 1 log"]
    # Files that were named are read whatever they are called.
    (tmp_path / "slurm-7").write_text(LINES[0][1])
    assert "sockets" in wrong(logs.checks(None, [tmp_path / "slurm-7"]))
    assert "unread" in wrong(logs.checks(None, [tmp_path / "nowhere"]))


def test_a_very_long_log_is_read_at_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_BYTES", 400)
    (tmp_path / "a.log").write_bytes(LINES[0][1].encode() + b"\n" + b"\xff\n" * 5000 + LINES[9][1].encode() + b"\n")
    assert set(wrong(logs.checks(tmp_path))) == {"sockets", "timeout"}
